"""The training study: a small network learns to read digits with the student's operators.

`command` is `python gpt149.py lab operators train`. `operations` calls the functions in the student's runner; `layers`
builds networks from them; `lockstep` compares each call with the oracle's answer and budget; `training` goes through
the epochs with both networks side by side; `scaling` times the student's with several numbers of threads. `digits`
draws the images and reads MNIST's files.
"""
