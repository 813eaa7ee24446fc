//! The streams that a process has created, so that one that is destroyed is known by its id: CUPTI must not be asked then.

use rustc_hash::FxHashMap;
use xputrace_model::context::{GpuContext, word, word::call};
use xputrace_wire::events::host::StreamChange;

/// Limit per process; the numbers come from the target.
const MOST_STREAMS: usize = 1 << 16;

/// CUPTI's ids of streams, by CUDA's handle.
#[derive(Debug, Default)]
pub(crate) struct StreamIds(FxHashMap<u64, u32>);

impl StreamIds {
    /// Takes a call that creates or destroys a stream, whose words are filled, and fills the id of one that is destroyed.
    pub(crate) fn fill(&mut self, ctx: &mut GpuContext, it: &StreamChange) {
        if it.has_handle == 0 {
            return;
        }
        if it.is_created == 0 {
            let id = self.0.remove(&it.handle);
            ctx[call::HAS_STREAM] = id.is_some().into();
            ctx[word::LAUNCH_STREAM] = id.unwrap_or(0).into();
        } else if it.has_stream != 0 && self.0.len() < MOST_STREAMS {
            self.0.insert(it.handle, it.stream);
        } else {
            // What had this handle before is gone.
            self.0.remove(&it.handle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_model::context::WORDS;

    /// Returns the id of the stream with this handle where it is destroyed.
    fn destroyed(ids: &mut StreamIds, handle: u64) -> Option<u64> {
        let mut ctx = [0; WORDS];
        ids.fill(&mut ctx, &StreamChange { handle, has_handle: 1, ..StreamChange::default() });
        (ctx[call::HAS_STREAM] != 0).then(|| ctx[word::LAUNCH_STREAM])
    }

    #[test]
    fn a_stream_that_is_destroyed_has_the_id_that_it_was_created_with() {
        let mut ids = StreamIds::default();
        let created = StreamChange {
            handle: 7,
            has_handle: 1,
            stream: 13,
            has_stream: 1,
            is_created: 1,
            ..StreamChange::default()
        };
        ids.fill(&mut [0; WORDS], &created);
        assert_eq!(destroyed(&mut ids, 7), Some(13));
        assert_eq!(destroyed(&mut ids, 7), None, "it is gone");
        ids.fill(&mut [0; WORDS], &created);
        ids.fill(&mut [0; WORDS], &StreamChange { has_stream: 0, ..created });
        assert_eq!(destroyed(&mut ids, 7), None, "another one has its handle, of an unknown id");
        for handle in 0..MOST_STREAMS as u64 + 9 {
            ids.fill(&mut [0; WORDS], &StreamChange { handle, ..created });
        }
        assert_eq!(ids.0.len(), MOST_STREAMS);
    }
}
