"""Names and digests of former code: a digest is part of a run's hash, and is kept where code does what it did."""

MOVED = {
    "pfl_ops.federation.method.contract": "pfl_ops.federation.contract",
    "pfl_ops.federation.method.round": "pfl_ops.federation.round",
    "pfl_ops.federation.network.cross_entropy": "pfl_ops.federation.leaves",
    "pfl_ops.system.scratch": "pfl_ops.scratch",
}
"""New name of a module of ours -> the name by which a digest knows it, and sorts the import of it.

A digest covers import statements, and is part of a run's hash: without this table, moving a module of the engine would
change the hashes of all methods that import it, and their finished runs would be computed again.
"""
EQUAL = {
    "49691e8a5e922afa57479a0105cdc97a2e6b931c1b9b81708d38f80f3b9d2ff9": (  # fedfomo: `own`
        "5bc6aa339ea785e220a1b879e7b9de6c5981d24bc33032bbb31a04aca6d755e2"
    ),
    "560097b4dc72eccf081f92d0ab23d1eccae7641ad6f07e61d820f8bad2433943": (  # proportions: no client loop, α up to 1e100
        "1a1c014522ad7d9319f4c7ebf30b7b4641bab83961831f38f6ffc82492054583"
    ),
    "0c2b6bf3b9ddaeaaa81e25e9b17b51bf3975460bc6ee0867744ecac87bef0c4a": (  # whole_classes likewise
        "bf4334e4020775e98980325eb93f7076d0fc7b4358ad01de2ffd11cee3cca52d"
    ),
    "7bd52eda5bd8c838e2dd564fd4a070ecc627269b9b91058d8e085a91717b24af": (  # sorted_shards likewise
        "d5084f9c42650af3f1f2c7e699b20b0ff7bbb4a579b933eaa819da44908fff24"
    ),
    "69fad9e4e0f32820c89a6e63c290f3c20ab41e7ad47abe684c3da84c43dba2ce": (  # cd2_pfed: no subclasses of layers
        "78dc78275855ad083f1c3d53f73fae0e3eb8529bc6909889b20b6a82cf0b7ea8"
    ),
    "1baf846b806aa99ea65afc9ebcf7a667e066f5164ed18a4d886ec6c3ee4b8579": (  # fedas, which has the same channels
        "bd2c2a5353340be00ccbe7661aa9e0dee57d60150bb657da696732183818e0e5"
    ),
    "84cc92e330e4b5b0ce1607d95c55e133df47d86bae446a740f5c61e4b0456e03": (  # recorded likewise
        "33cb5c92d20ffdcd9533a3d857d239e197bde13d60ad06b1b2d204a302e28df3"
    ),
    "9d4556bb116cbee2ca3c9cc2cd6c4e32d9e204f4736fa1f31c56be1882d2d3bb": (  # fliu: γ of `range` that rounding put over 1
        "3c14f077cc132f5f8d4aa5443a79c6c24cb308c88a2cabb2a9aa526a028bdcb6"
    ),
    "e832d5ec0307060b69577110899a8f8a0309555a95be08d97903192bf49e49c9": (  # fedrep: `ignored`
        "1f07b9c38d2149318429fb74a9c43868aeb97fe73234488216b8250815d56110"
    ),
    "139f86649b3686010099b1b6f0b5cba9723ea79c1f300331fe6e3a1c8243d21f": (  # fedpg, s_fedpg: `required`, `ignored`
        "49954a163fa43b14bee20bbefff2086761c1b79daef93a70dbf49a9c0095d595"
    ),
    "15dbb97505739d59dc2b2ff5ab6431effa077c5b2c542347a3b72ba23fda8e3d": (  # fedamp: takes weights that it drops
        "718e722933ecb878f0d5da91e302dfe5991d0ef2ad813e08b84fef4e888eea96"
    ),
    "46155ed4eaebd5bfa8c2bed3832cc83f68122bbb38f95c88001ba1c57b55dec5": (  # scaff_pd: `ignores_with_all`
        "16d7e6ec942a13f36236987e754cab8597904ccfd5ba600e1c2cbcc13346158f"
    ),
    "74ace3636ca540e4ddd218c2b9d9693ee407e397ec5301c5f36e5d6b9e7266ee": (  # per_fedavg: `ignored`, no hf with dropout
        "63a89bb64bdecba81d1b45a3c7b24c7485bbb426c7170126595585246c277c2f"
    ),
    "0d1ec0a9c342eeba37c5762e47744cc2e15e4373f6a2a12a8ee13fbd0ca69971": (  # resnet18_head: start_from fills in buffers
        "21d379a9db6e95cc5ec5cf6cb68972235c76f887b0f03ff2f6311c350fc15cf3"
    ),
}
"""Digest of code that changed -> that of its code before, which computes the same, bit for bit.

A method got an option, which is in its `added` so that its default keeps the hashes of finished runs. Or code became
faster, refuses networks or settings that it took before, takes some that it refused, or states other settings as being
without effect; or a helper of a network changed that it does not call. `pinned_results.csv` and tests of the method, or
of the partition (`test_partition`, `test_cut`), hold that no number moved.
"""
