"""One stdlib-only generator a family. A starter environment carries its family's file verbatim."""
