"""The training study: a small network learns to read digits, every operator of it the student's.

`command` is `python gpt149.py lab operators train`. `operations` says what is called and calls it, in the student's
runner; `layers` makes networks of it; `lockstep` compares each call with the oracle's answer and budget;
`training` goes through the epochs with both networks side by side; `scaling` times the student's with several numbers
of threads. `digits` draws the images and reads MNIST's files.
"""
