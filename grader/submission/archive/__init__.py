"""Readers of untrusted archives. They list the names and yield the bytes of members, and write no named file.

Theory of operation. A reader lists an archive (`Member`: the parts of a name, the kind of entry) and yields the content
of one member in pieces of at most 64 KiB. The caller decides where a member is written and under which name. Names in
the archive are only compared, so `../../.bashrc`, a device or a symbolic link has no effect. A member whose name leads
out of the archive gets a `trouble`, the reason to refuse it.

Headers are not trusted: the unpacked bytes are counted, and every count has a limit (`ArchiveLimits`). Python's own
zipfile and tarfile read listings of any size into memory, and some headers make them loop.

Formats: zip (stored and deflated, zip64) and tar, plain or compressed with gzip, bzip2 or xz.
"""
