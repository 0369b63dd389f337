"""The training study: a small network learns to read digits with the student's operators.

`command` is `python gpt149.py lab operators train`. `operations` calls the functions in the student's runner. `layers`
builds networks from these functions, `networks` describes the networks. `lockstep` compares the first calls with the
oracle. `training` trains the student's network and PyTorch's in turn, epoch by epoch. `scaling` times the student's
network with several numbers of threads. `digits` draws the images and reads MNIST's files.
"""
