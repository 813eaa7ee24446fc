//! Gaps: while another tool in the process had CUPTI's records (docs/JOIN.md, "Other tools").

use crate::process_info::ProcessInfo;
use xputrace_model::gap::Gap;
use xputrace_wire::record::{Launch, Yield};

/// Gaps kept per process; further ones lengthen the last.
const MOST_GAPS: usize = 1000;

/// The gaps of one process.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    all: Vec<(Yield, String)>,
    /// Beginning of the newest gap: the collector has delivered all that it records of earlier launches.
    newest: u64,
    /// The same, once a flush has shown that all of it has arrived.
    delivered_before: u64,
}

impl Gaps {
    /// Notes a record; a gap has one when it begins and another one when it ends.
    pub(crate) fn on_yield(&mut self, gap: Yield, holder: &[u8]) {
        let is_refusal = gap.ended == gap.began;
        if !is_refusal {
            self.newest = self.newest.max(gap.began);
        }
        match self.all.iter().rposition(|it| it.0.began == gap.began) {
            Some(at) if self.all[at].0.ended == 0 => self.all[at].0 = gap,
            Some(_) => {}
            None if self.all.len() < MOST_GAPS => {
                self.all.push((gap, xputrace_model::text::from_bytes(holder)));
            }
            None => self.lengthen(gap),
        }
    }

    fn lengthen(&mut self, gap: Yield) {
        if let Some((last, _)) = self.all.last_mut() {
            last.ended = last.ended.saturating_add(gap.ended.saturating_sub(gap.began));
            last.launches =
                last.seen().0.saturating_add(gap.seen().0) | (last.launches | gap.launches) & Yield::AT_LEAST;
        }
    }

    /// Takes the start of a flush; returns the time before which launches wait in vain, if that is news.
    pub(crate) fn flush(&mut self, began: u64) -> Option<u64> {
        if began <= self.newest || self.delivered_before == self.newest {
            return None;
        }
        self.delivered_before = self.newest;
        Some(self.newest)
    }

    /// Whether nothing may wait for a launch's activity: its record may be another tool's.
    pub(crate) fn concern(&self, launch: &Launch) -> bool {
        launch.flags & Launch::YIELDED != 0 || launch.start < self.delivered_before
    }

    /// Returns them; one that has not ended ends at this time.
    pub(crate) fn of(&self, info: &ProcessInfo, end: u64) -> impl Iterator<Item = Gap> {
        self.all.iter().map(move |(gap, holder)| Gap {
            pid: info.pid,
            comm: info.comm.clone(),
            holder: holder.clone(),
            start: gap.began,
            end: if gap.ended == 0 { end.max(gap.began) } else { gap.ended },
            launches: gap.seen().0,
            saw_all: gap.seen().1,
            was_refused: gap.ended == gap.began,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_has_one_row_and_a_killed_process_leaves_it_open() {
        let mut gaps = Gaps::default();
        gaps.on_yield(Yield { began: 10, ..Yield::default() }, b"liba.so");
        gaps.on_yield(Yield { began: 10, ended: 30, launches: 7, len: 0 }, b"liba.so");
        gaps.on_yield(Yield { began: 40, ..Yield::default() }, b"libb.so");
        gaps.on_yield(Yield { began: 50, ended: 50, ..Yield::default() }, b"libc.so");
        let info = ProcessInfo { pid: 3, ..ProcessInfo::default() };
        let all: Vec<_> = gaps.of(&info, 60).collect();
        let shown =
            all.iter().map(|it| (it.holder.as_str(), it.start, it.end, it.launches, it.saw_all, it.was_refused));
        let expected = [
            ("liba.so", 10, 30, 7, true, false),
            ("libb.so", 40, 60, 0, false, false),
            ("libc.so", 50, 50, 0, true, true),
        ];
        assert_eq!(shown.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn launches_before_a_gap_are_waited_for_until_the_next_flush() {
        let mut gaps = Gaps::default();
        let before = Launch { start: 5, ..Launch::default() };
        gaps.on_yield(Yield { began: 10, ..Yield::default() }, b"");
        assert!(!gaps.concern(&before));
        assert_eq!((gaps.flush(9), gaps.flush(11), gaps.flush(12)), (None, Some(10), None));
        assert!(gaps.concern(&before));
        assert!(!gaps.concern(&Launch { start: 10, ..before }));
        assert!(gaps.concern(&Launch { start: 10, flags: Launch::YIELDED, ..before }));
    }
}
