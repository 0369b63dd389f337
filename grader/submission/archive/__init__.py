"""Archives that strangers packed, read as a list of names and as bytes, never as an order to write a file.

Theory of operation. A reader lists an archive (`Member`: the parts of a name, what kind of thing it is) and gives the
content of one member as pieces of at most 64 KiB. It writes nothing: whoever wants a member decides where it goes and
under which name, so that `../../.bashrc`, a device or a symbolic link has no path to travel on. Names are kept as they
stand and only ever compared; a name that tries to lead outside is marked with its `trouble`. No header is believed:
bytes are counted as they come out, and every count has a limit (`ArchiveLimits`). Python's own zipfile and tarfile read
listings of any size into memory, and headers have been found that send them round in circles.

Formats: zip (stored and deflated, zip64) and tar, plain or compressed with gzip, bzip2 or xz.
"""

from grader.submission.archive.opening import archive_stem, is_archive_name, open_archive, spool
from grader.submission.archive.records import (
    PIECE_BYTES,
    Archive,
    ArchiveLimits,
    Kind,
    Member,
    Unreadable,
    shown,
)

__all__ = [
    "PIECE_BYTES",
    "Archive",
    "ArchiveLimits",
    "Kind",
    "Member",
    "Unreadable",
    "archive_stem",
    "is_archive_name",
    "open_archive",
    "shown",
    "spool",
]
