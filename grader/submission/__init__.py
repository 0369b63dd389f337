"""Submissions: hand-ins of a class in any form, converted to one small folder for each submission.

Forms: a source file; a folder with a source file in it or in a folder below; an archive of such a folder; a folder or
an archive of any of these, one per student; a Gradescope export (`submission_metadata.yml` beside `submission_<id>`); a
Canvas export (`doejane_LATE_12345_67890_module-1.cpp`); a Moodle download (`Ada Lovelace_123_assignsubmission_file_`
folders); source files named for their students (`alice.cpp`).

A Python source is copied as one file together with the modules that it imports from its own folders
(`grader.core.pythontree`). If no file has the assigned name, a file `adapters.py` that imports the kernels is used.

Only the files that the assignment names are copied, under the assignment's names, into `<scratch>/<id>/`. Folders have
mode 0700 and files 0600, so students cannot change them later. Archives are unpacked in memory or in unnamed files. A
submission that cannot be read has an `error` in place of a `source`; the others are graded. Submissions are copied one
after the other, so the need for memory and disk does not grow with the unpacked size of the class.

If several files match, the file nearest to the top folder is chosen. In one folder the order is: the exact name; a name
that differs in capitals only; a numbered name (`module-2.cpp`, `module (2).cpp`). In a Canvas export the number counts
attempts, and the highest is chosen. An archive in a submission is opened only if no folder of the submission holds a
source. If two files match equally well, an error names both. Hidden files, and files that macOS and Windows add, are
ignored.
"""

from grader.submission.finding import MAX_SOURCE_BYTES, Submission, companions_of, find, find_one

__all__ = ["MAX_SOURCE_BYTES", "Submission", "companions_of", "find", "find_one"]
