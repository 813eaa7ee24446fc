//! Writes a recording on a thread of its own: to compress a block takes longer than rings have room for.

use super::entry::{Meta, RecordingEntry};
use super::format::RecordingError;
use super::writer::RecordingWriter;
use std::io::{self, Write};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Entries that wait for the thread at most; then writing waits for it. A drain of rings at full rate is some 100 KB.
const MOST_WAITING: usize = 128;

/// What the thread is to write.
enum WriteOrder {
    RecordingEntry(RecordingEntry),
    Drain { process: u32, time_nanos: u64, rings: Vec<Vec<u8>> },
}

/// A [`RecordingWriter`] on a thread. What goes wrong there is returned by a later call.
#[derive(Debug)]
pub struct BackgroundWriter<W: Write> {
    work: Option<SyncSender<WriteOrder>>,
    /// `None` once it was waited for.
    thread: Option<JoinHandle<Result<RecordingWriter<W>, RecordingError>>>,
}

impl<W: Write + Send + 'static> BackgroundWriter<W> {
    /// Writes the header, and starts the thread.
    ///
    /// # Errors
    /// The output cannot be written, or there is no thread.
    pub fn new(out: W, meta: &Meta) -> Result<Self, RecordingError> {
        let mut writer = RecordingWriter::new(out, meta)?;
        let (work, works) = sync_channel(MOST_WAITING);
        let write = move || {
            for work in works {
                match work {
                    WriteOrder::RecordingEntry(entry) => writer.write(&entry)?,
                    WriteOrder::Drain { process, time_nanos, rings } => writer.gather(process, time_nanos, rings)?,
                }
            }
            Ok(writer)
        };
        let thread = std::thread::Builder::new().name("xputrace-tape".into()).spawn(write);
        let thread = thread.map_err(|answer| RecordingError::Io { attempted: "start a thread that writes", answer })?;
        Ok(BackgroundWriter { work: Some(work), thread: Some(thread) })
    }

    /// Like [`RecordingWriter::write`].
    ///
    /// # Errors
    /// Something before could not be written.
    pub fn write(&mut self, entry: RecordingEntry) -> Result<(), RecordingError> {
        self.send(WriteOrder::RecordingEntry(entry))
    }

    /// Like [`RecordingWriter::gather`].
    ///
    /// # Errors
    /// Something before could not be written.
    pub fn gather(&mut self, process: u32, time_nanos: u64, rings: Vec<Vec<u8>>) -> Result<(), RecordingError> {
        self.send(WriteOrder::Drain { process, time_nanos, rings })
    }

    /// Ends the recording and returns the output.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn finish(mut self) -> Result<W, RecordingError> {
        self.join()?.finish()
    }

    fn send(&mut self, work: WriteOrder) -> Result<(), RecordingError> {
        // The thread ends early only if it could not write.
        match self.work.as_ref().is_some_and(|it| it.send(work).is_ok()) {
            true => Ok(()),
            false => self.join().map(|_| ()),
        }
    }

    fn join(&mut self) -> Result<RecordingWriter<W>, RecordingError> {
        self.work = None;
        let gone = || RecordingError::Io { attempted: "write", answer: io::Error::other("writing has ended before") };
        self.thread.take().ok_or_else(gone)?.join().unwrap_or_else(|_| Err(gone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_model::loss::Losses;

    fn drains() -> impl Iterator<Item = (u64, Vec<Vec<u8>>)> {
        (1..400).map(|it| (it, vec![vec![it as u8; 40], vec![]]))
    }

    #[test]
    fn it_writes_what_a_writer_writes() {
        let meta = Meta::default();
        let mut alone = RecordingWriter::new(Vec::new(), &meta).unwrap();
        let mut background = BackgroundWriter::new(Vec::new(), &meta).unwrap();
        for (time, rings) in drains() {
            alone.gather(3, time, rings.clone()).unwrap();
            background.gather(3, time, rings).unwrap();
        }
        let losses = RecordingEntry::Losses(Losses::default());
        alone.write(&losses).unwrap();
        background.write(losses).unwrap();
        assert_eq!(background.finish().unwrap(), alone.finish().unwrap());
    }

    /// Has room for the header alone.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += 1;
            if self.0 == 1 { Ok(bytes.len()) } else { Err(io::ErrorKind::StorageFull.into()) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_could_not_be_written_is_told_later() {
        let mut writer = BackgroundWriter::new(Full(0), &Meta::default()).unwrap();
        let entry = || RecordingEntry::Losses(Losses::default());
        let error = (0..10_000).find_map(|_| writer.write(entry()).err()).expect("it is told");
        assert!(
            matches!(&error, RecordingError::Io { answer, .. } if answer.kind() == io::ErrorKind::StorageFull),
            "{error}"
        );
        assert!(writer.write(entry()).is_err() && writer.finish().is_err());
    }
}
