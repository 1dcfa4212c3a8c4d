"""Configuration: the experiment, and what reads, checks, merges, names and hashes its settings.

experiment      all settings of a run: composed, changed, read, hashed
arguments       keyword arguments of the package's functions, and refusals that name the nearest one
fields          a setting's path, allowed values, symbol and meaning
paths           values set at dotted paths, and pydantic's errors as one line each
precedence      layers of settings from weak to strong, merged
presets         named settings, in presets.yaml
yaml_files      YAML as people write it
identity        the settings, data and code that decide a result, and their SHA-256
conflicts       settings of different sections that do not go together
without_effect  settings that change no result of an experiment
samples         what a federation trains on: a data set, or what a frozen network makes of it
final_samples   the number of pooled samples behind the last round's scores
"""
