//! Lines of a file or of stdin, read beside everything else and handed over one by one.

use std::io::{BufRead, BufReader, Read};

use bytes::Bytes;
use flotilla_runtime::Runtime;
use tokio::sync::mpsc;

/// Lines read ahead.
const LINES_AHEAD_MAX: usize = 256;

/// One line, without its end.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    /// From 1.
    pub number: u64,
    pub bytes: Bytes,
}

/// Why a line is not handed over. No further line follows.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    #[error("cannot be read: {source}")]
    Unreadable { number: u64, source: std::io::Error },
    #[error("not sent: it is longer than {limit} bytes, the most a body may have")]
    TooLong { number: u64, limit: usize },
    #[error("not sent: it is empty, and a body must have at least 1 byte")]
    Empty { number: u64 },
}

impl LineError {
    /// Of the line, from 1.
    pub fn number(&self) -> u64 {
        match self {
            LineError::Unreadable { number, .. } | LineError::TooLong { number, .. } | LineError::Empty { number } => {
                *number
            }
        }
    }
}

/// Starts reading; ends after the last line, after an error, or when the receiver is dropped.
pub fn read_lines(
    source: impl Read + Send + 'static,
    line_bytes_max: usize,
    runtime: &Runtime,
) -> mpsc::Receiver<Result<Line, LineError>> {
    let (send, receive) = mpsc::channel(LINES_AHEAD_MAX);
    let reader = runtime.clone();
    // Not owned by anybody: a blocking read of a terminal cannot be cancelled, it ends with its source.
    runtime
        .spawn("read-lines", async move {
            reader
                .blocking(move || Splitter::new(source, line_bytes_max).for_each(|line| send.blocking_send(line)))
                .await;
        })
        .detach();
    receive
}

struct Splitter<R> {
    source: BufReader<R>,
    number: u64,
    line_bytes_max: usize,
}

impl<R: Read> Splitter<R> {
    fn new(source: R, line_bytes_max: usize) -> Splitter<R> {
        Splitter { source: BufReader::with_capacity(1 << 16, source), number: 0, line_bytes_max }
    }

    /// Hands over line by line until one cannot be read or nobody wants it.
    fn for_each<E>(mut self, mut hand_over: impl FnMut(Result<Line, LineError>) -> Result<(), E>) {
        while let Some(line) = self.next() {
            let is_last = line.is_err();
            if hand_over(line).is_err() || is_last {
                return;
            }
        }
    }

    fn next(&mut self) -> Option<Result<Line, LineError>> {
        self.number += 1;
        let (number, limit) = (self.number, self.line_bytes_max);
        let mut bytes = Vec::new();
        // Room for the longest line and its end; what is longer is not read to its end.
        let read = self.source.by_ref().take(limit as u64 + 2).read_until(b'\n', &mut bytes);
        match read {
            Err(source) => return Some(Err(LineError::Unreadable { number, source })),
            Ok(0) => return None,
            Ok(_) => {}
        }
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
            if bytes.last() == Some(&b'\r') {
                bytes.pop();
            }
        }
        Some(match bytes.len() {
            0 => Err(LineError::Empty { number }),
            length if length > limit => Err(LineError::TooLong { number, limit }),
            _ => Ok(Line { number, bytes: bytes.into() }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8], limit: usize) -> Vec<Result<Vec<u8>, String>> {
        let mut all = Vec::new();
        Splitter::new(text, limit).for_each(|line| {
            all.push(line.map(|line| line.bytes.to_vec()).map_err(|error| format!("line {}: {error}", error.number())));
            Ok::<(), ()>(())
        });
        all
    }

    #[test]
    fn ends_of_lines_are_taken_off() {
        assert_eq!(lines(b"a\nb\r\nc", 9), [Ok(b"a".to_vec()), Ok(b"b".to_vec()), Ok(b"c".to_vec())]);
        assert!(lines(b"", 9).is_empty());
    }

    #[test]
    fn the_longest_line_is_read_and_a_longer_one_refused() {
        assert_eq!(lines(b"1234\r\nx\n", 4), [Ok(b"1234".to_vec()), Ok(b"x".to_vec())]);
        let refused = lines(b"a\n12345\nb\n", 4);
        assert_eq!(refused.len(), 2, "nothing is read behind a line that fails");
        assert_eq!(refused[1], Err("line 2: not sent: it is longer than 4 bytes, the most a body may have".to_owned()));
        assert!(lines(&[b'x'; 1000], 4)[0].is_err());
    }

    #[test]
    fn an_empty_line_is_refused_with_its_number() {
        let refused = lines(b"a\n\nb\n", 4);
        assert!(refused[1].as_ref().unwrap_err().starts_with("line 2: not sent: it is empty"), "{refused:?}");
    }
}
