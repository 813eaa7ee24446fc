//! Writes a recording on a thread of its own: to compress a block takes longer than rings have room for.

use super::entry::{Meta, RecordingEntry};
use super::format::RecordingError;
use super::writer::RecordingWriter;
use std::io::{self, Write};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Entries that wait for the thread at most; then writing waits for it. A drain of rings at full rate is some 100 KB.
const MOST_WAITING: usize = 128;

/// A [`RecordingWriter`] on a thread. What goes wrong there is returned by a later call.
#[derive(Debug)]
pub struct BackgroundWriter<W: Write> {
    entries: Option<SyncSender<RecordingEntry>>,
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
        let (entries, received) = sync_channel(MOST_WAITING);
        let write = move || {
            received.iter().try_for_each(|it| writer.write(it))?;
            Ok(writer)
        };
        let thread = std::thread::Builder::new().name("xputrace-tape".into()).spawn(write);
        let thread = thread.map_err(|answer| RecordingError::Io { attempted: "start a thread that writes", answer })?;
        Ok(BackgroundWriter { entries: Some(entries), thread: Some(thread) })
    }

    /// Like [`RecordingWriter::write`].
    ///
    /// # Errors
    /// Something before could not be written.
    pub fn write(&mut self, entry: RecordingEntry) -> Result<(), RecordingError> {
        // The thread ends early only if it could not write.
        match self.entries.as_ref().is_some_and(|it| it.send(entry).is_ok()) {
            true => Ok(()),
            false => self.join().map(|_| ()),
        }
    }

    /// Ends the recording and returns the output.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn finish(mut self) -> Result<W, RecordingError> {
        self.join()?.finish()
    }

    fn join(&mut self) -> Result<RecordingWriter<W>, RecordingError> {
        self.entries = None;
        let gone = || RecordingError::Io { attempted: "write", answer: io::Error::other("writing has ended before") };
        self.thread.take().ok_or_else(gone)?.join().unwrap_or_else(|_| Err(gone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_model::loss::Losses;

    fn drains() -> impl Iterator<Item = RecordingEntry> {
        let rings = |it: u64| vec![vec![it as u8; 40], vec![]];
        (1..400).map(move |it| RecordingEntry::Wire { process: 3, time_nanos: it, rings: rings(it) })
    }

    #[test]
    fn it_writes_what_a_writer_writes() {
        let meta = Meta::default();
        let mut alone = RecordingWriter::new(Vec::new(), &meta).unwrap();
        let mut background = BackgroundWriter::new(Vec::new(), &meta).unwrap();
        for drain in drains() {
            alone.write(drain.clone()).unwrap();
            background.write(drain).unwrap();
        }
        let losses = RecordingEntry::Losses(Losses::default());
        alone.write(losses.clone()).unwrap();
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
