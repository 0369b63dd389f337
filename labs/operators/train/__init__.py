"""The training study: a small network learns to read digits, every operator of it the student's.

`command` is `python gpt149.py lab operators train`. `operations` says what is called and calls it, in the student's
runner; `layers` makes networks of it; `expected` knows what PyTorch answers to the same call, and how far float32 may
be from that; `training` goes through the epochs with both networks side by side; `scaling` times the student's with
several numbers of threads. `digits` draws the images, `idx` reads MNIST's files.
"""
