"""The shape of a sample for each network of the package."""

SAMPLE_SHAPES = {
    "linear": (8, 8, 1),
    "mlp": (8, 8, 1),
    "cnn": (12, 8, 3),
    "cnn6": (17, 21, 2),
    "cnn_cifar": (8, 9, 3),
    "cnn_tiny": (8, 8, 1),
    "kmnist_cnn": (8, 12, 1),
    "fakelenet5": (16, 17, 3),
    "lenet5": (16, 17, 3),
    "nf_resnet18": (8, 9, 3),
    "char_lstm": (6,),
    "resnet18_head": (512,),
}
