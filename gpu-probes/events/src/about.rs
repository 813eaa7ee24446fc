//! What is said of an event to people, in one place: help, manual pages, the language reference, definitions for editors,
//! completions, `explain`, and mistakes take it from here.

/// What is said of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// How a handler is declared: `kernel(|k| …)`.
    pub usage: &'static str,
    /// When it fires: a clause, in Markdown.
    pub fires: &'static str,
    /// A script that uses it.
    pub example: &'static str,
    /// Where there is more about it.
    pub more: Option<&'static str>,
    /// When its record is made, after "recorded".
    pub recorded: &'static str,
    /// When its handlers change a map, after "is changed".
    pub changed: &'static str,
    /// How to change a map in time, for CPU probes that read it.
    pub in_time: &'static str,
    /// What `explain` calls the records; empty for "NAME events".
    pub records: &'static str,
}

const NOTHING: About =
    About { usage: "", fires: "", example: "", more: None, recorded: "", changed: "", in_time: "", records: "" };

impl About {
    /// Of what happens on the CPU, where handlers run at once.
    pub const AT_ONCE: About = NOTHING;

    /// Of what a GPU does.
    pub const OF_ACTIVITY: About = About {
        more: Some("The fields of `launch` are those of the launch event: xputrace help launch"),
        changed: "when the GPU's record arrives, long after the launch",
        in_time: "to change it during the launch, use a `launch` handler",
        ..NOTHING
    };

    /// Of CUDA calls.
    pub const OF_CALL: About = About {
        recorded: "when the outermost call returns",
        changed: "after the call has returned",
        in_time: "to change it during the call, probe CUDA's function, as `uprobe(\"libcudart:cudaMalloc\", …)` does",
        ..NOTHING
    };

    /// Of what the vendor's library makes records of.
    pub const OF_RECORD: About = About {
        recorded: "by CUPTI, which delivers it later",
        changed: "when CUPTI's record arrives",
        in_time: "to change it in time, use a CPU probe on the program's own function",
        ..NOTHING
    };

    /// Of launches.
    pub const OF_LAUNCH: About = About {
        recorded: "when the outermost call returns",
        changed: "after the launch has returned",
        in_time: "to change it during the launch, use a `launch` handler",
        ..NOTHING
    };
}
