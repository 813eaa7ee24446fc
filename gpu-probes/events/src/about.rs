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
    pub cost: CostClass,
    /// What it costs where that was measured.
    pub measured: Option<MeasuredCost>,
}

/// What of the traced program an event slows down, beside what its handlers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostClass {
    /// Nothing: it happens in the tracer.
    Tracer,
    /// Each hit, by Linux.
    Hit,
    /// Each call that it tells of, by the collector.
    Call,
    /// Each call that has something recorded, by the vendor's library.
    Record,
    /// Kernels that handlers run in.
    Kernel,
}

impl CostClass {
    /// Returns what is slowed down.
    pub const fn text(self) -> &'static str {
        match self {
            CostClass::Tracer => "nothing: it happens in xputrace",
            CostClass::Hit => "time at each hit, which Linux handles",
            CostClass::Call => "time at each call that it tells of",
            CostClass::Record => "time at each call for which CUPTI makes a record",
            CostClass::Kernel => "time in the kernels that match, in each of their threads",
        }
    }
}

/// What a call takes longer while an event is recorded, as measured on an H200.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredCost {
    /// The row and the column of `docs/data/costs.csv` that it is the median of, less the bare stretches before.
    pub from: (&'static str, &'static str),
    pub nanos: u32,
    /// Of what, in words.
    pub per: &'static str,
}

impl MeasuredCost {
    /// Makes one, in nanoseconds.
    pub const fn new(from: (&'static str, &'static str), nanos: u32, per: &'static str) -> Self {
        MeasuredCost { from, nanos, per }
    }

    /// Returns it as text: `0.65 us per wait`.
    pub fn text(&self) -> String {
        format!("{:.2} us per {}", f64::from(self.nanos) / 1000.0, self.per)
    }
}

const NOTHING: About = About {
    usage: "",
    fires: "",
    example: "",
    more: None,
    recorded: "",
    changed: "",
    in_time: "",
    records: "",
    cost: CostClass::Tracer,
    measured: None,
};

impl About {
    /// Of what happens in the tracer.
    pub const IN_TRACER: About = NOTHING;

    /// Of what happens on the CPU, where handlers run at once, in Linux.
    pub const AT_ONCE: About = About { cost: CostClass::Hit, ..NOTHING };

    /// Of what happens in kernels.
    pub const IN_KERNELS: About = About { cost: CostClass::Kernel, ..NOTHING };

    /// Of what a GPU does.
    pub const OF_ACTIVITY: About = About {
        more: Some("The fields of `launch` are those of the launch event: xputrace help launch"),
        changed: "when the GPU's record arrives, long after the launch",
        in_time: "to change it during the launch, use a `launch` handler",
        cost: CostClass::Record,
        ..NOTHING
    };

    /// Of CUDA calls.
    pub const OF_CALL: About = About {
        recorded: "when the outermost call returns",
        changed: "after the call has returned",
        in_time: "to change it during the call, probe CUDA's function, as `uprobe(\"libcudart:cudaMalloc\", …)` does",
        cost: CostClass::Call,
        ..NOTHING
    };

    /// Of what the vendor's library makes records of.
    pub const OF_RECORD: About = About {
        recorded: "by CUPTI, which delivers it later",
        changed: "when CUPTI's record arrives",
        in_time: "to change it in time, use a CPU probe on the program's own function",
        cost: CostClass::Record,
        ..NOTHING
    };

    /// Of launches.
    pub const OF_LAUNCH: About = About {
        recorded: "when the outermost call returns",
        changed: "after the launch has returned",
        in_time: "to change it during the launch, use a `launch` handler",
        cost: CostClass::Call,
        ..NOTHING
    };
}
