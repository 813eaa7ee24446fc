//! What is known of a launch when its call has only begun: at the collector's marker function, in Linux.

use super::typed::ValueSource;
use xputrace_model::context::word;

/// Where a field's value is then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtLaunch {
    /// In the word that it has in the event.
    Word,
    /// Elsewhere.
    Source(ValueSource),
    /// Nowhere, and why.
    Later(&'static str),
}

const NOT_RETURNED: AtLaunch = AtLaunch::Later("the call has not returned yet");
const BY_TRACER: AtLaunch = AtLaunch::Later("the tracer adds it after the call returns");

/// Returns where a launch's field of this name is; `None` if there is no such field.
pub(super) fn at_launch(field: &str) -> Option<AtLaunch> {
    Some(match field {
        "time" | "start" | "grid" | "block" | "dynamic_shared" | "device" | "context" | "stream" => AtLaunch::Word,
        "pid" => AtLaunch::Source(ValueSource::Pid),
        "tid" => AtLaunch::Source(ValueSource::Tid),
        "comm" => AtLaunch::Source(ValueSource::Comm),
        "symbol" => AtLaunch::Source(ValueSource::MarkerText(word::LAUNCH_SYMBOL)),
        "duration" | "end" | "result" => NOT_RETURNED,
        "name" => AtLaunch::Later("only the mangled name is known when the call begins"),
        "tag" => AtLaunch::Later("it can only be set there"),
        "kind" | "api" | "ustack" | "pystack" | "gpu" | "nvtx" | "nvtx_path" | "stream_kind" | "stream_priority"
        | "external" | "external_kind" => BY_TRACER,
        _ => return None,
    })
}

/// Whether a launch's field is known only after its call has returned.
pub(super) fn is_later(field: &str) -> bool {
    matches!(at_launch(field), Some(AtLaunch::Later(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_model::schema::LAUNCH;

    #[test]
    fn it_is_said_of_every_field() {
        let unsaid: Vec<&str> = LAUNCH.iter().map(|it| it.name).filter(|it| at_launch(it).is_none()).collect();
        assert_eq!(unsaid, <[&str; 0]>::default());
    }
}
