//! Summary files on disk: written when a segment is sealed, read at start, gone with their segment.

use std::io;
use std::path::Path;

use crate::disk::{Disk, read_file, write_file_atomically};
use crate::segment::{SegmentHeader, Summary, parse_segment_name};

const SUFFIX: &str = ".sum";
/// What an interrupted write leaves behind.
const UNFINISHED_SUFFIX: &str = ".sum.tmp";

/// Writes a summary. A failure is harmless: the next start walks over the segment instead.
pub(crate) fn write_summary(disk: &dyn Disk, dir: &Path, summary: &Summary) {
    let name = summary.file_name();
    if let Err(error) = write_file_atomically(disk, dir, &name, &summary.encode()) {
        tracing::warn!(file = name, %error, "summary of a segment could not be written");
    }
}

/// The summary of the segment with that header, if there is a sound one.
pub(crate) fn read_summary(disk: &dyn Disk, dir: &Path, header: &SegmentHeader) -> Option<Summary> {
    let name = summary_name(&header.file_name())?;
    let bytes = match read_file(disk, &dir.join(&name)) {
        Ok(bytes) => bytes,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(file = name, %error, "summary of a segment cannot be read");
            }
            return None;
        }
    };
    match Summary::decode(&bytes) {
        Ok(summary)
            if (summary.identity, summary.sequence, summary.first)
                == (header.identity, header.sequence, header.first)
                && summary.position <= header.segment_bytes =>
        {
            Some(summary)
        }
        Ok(_) => {
            tracing::warn!(file = name, "summary is of another segment");
            None
        }
        Err(what) => {
            tracing::warn!(file = name, what, "summary of a segment is damaged");
            None
        }
    }
}

/// Removes the summary beside a segment file that was removed.
pub(crate) fn remove_summary(disk: &dyn Disk, segment_path: &Path) -> io::Result<()> {
    match disk.remove(&segment_path.with_extension(&SUFFIX[1..])) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes summaries whose segment is gone, and unfinished ones. `names` are all files of the directory.
pub(crate) fn remove_orphans(disk: &dyn Disk, dir: &Path, names: &[String]) -> io::Result<()> {
    for name in names {
        let is_orphan = match name.strip_suffix(SUFFIX) {
            Some(stem) => {
                let segment = format!("{stem}.seg");
                parse_segment_name(&segment).is_some() && names.binary_search(&segment).is_err()
            }
            None => name.ends_with(UNFINISHED_SUFFIX),
        };
        if is_orphan {
            disk.remove(&dir.join(name))?;
        }
    }
    Ok(())
}

fn summary_name(segment_name: &str) -> Option<String> {
    Some(format!("{}{SUFFIX}", segment_name.strip_suffix(".seg")?))
}
