//! Words how right the times are that device handlers have read.

use xputrace_model::schema::Unit;
use xputrace_render::{counted, human};
use xputrace_rendezvous::Clocks;

/// Says how right times were, where handlers have read any. Of a compiled object also what the GPU's timer is ahead: that has helpers
/// for the timer itself.
pub fn notes(clocks: Clocks, is_of_object: bool) -> Vec<String> {
    let Clocks { most_error_nanos, offset_nanos, n_unmeasured } = clocks;
    let within = || human(i64::try_from(most_error_nanos).unwrap_or(i64::MAX), Unit::Nanos);
    let measured = (most_error_nanos > 0).then(|| {
        let ahead = if is_of_object {
            format!("; %globaltimer was {} ns ahead of CLOCK_MONOTONIC", offset_nanos.wrapping_neg())
        } else {
            String::new()
        };
        format!("times inside kernels are right within {}{ahead}", within())
    });
    let unmeasured = (n_unmeasured > 0).then(|| {
        format!(
            "the GPU's timer could not be measured in {}: times inside kernels may be wrong by a millisecond there",
            counted(n_unmeasured, "context", "contexts")
        )
    });
    measured.into_iter().chain(unmeasured).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_said_and_what_was_not_measured() {
        let clocks = Clocks { most_error_nanos: 4_100, offset_nanos: -17, n_unmeasured: 0 };
        assert_eq!(notes(Clocks::default(), true), <[String; 0]>::default());
        assert_eq!(notes(clocks, false), ["times inside kernels are right within 4.10 us"]);
        let both = clocks.and(Clocks { n_unmeasured: 2, ..Clocks::default() });
        assert_eq!(
            notes(both, true),
            [
                "times inside kernels are right within 4.10 us; %globaltimer was 17 ns ahead of CLOCK_MONOTONIC",
                "the GPU's timer could not be measured in 2 contexts: times inside kernels may be wrong by a millisecond there",
            ]
        );
    }
}
