//! What the collector's function `xputrace_arm` returns to whoever attached to a running process.

/// The outcome of arming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Armed,
    /// The tracer has been told why, or wants nothing.
    Refused,
    /// The collector does not reach the tracer, or does not trust it.
    NoTracer,
    /// Another tracer has armed the process: its process id as this process sees it, or 0 if it
    /// cannot see it.
    Busy(u32),
}

impl Answer {
    /// Returns the C function's result.
    pub fn code(self) -> i32 {
        match self {
            Answer::Refused => 0,
            Answer::Armed => 1,
            Answer::NoTracer => 2,
            Answer::Busy(holder) => -1 - holder as i32,
        }
    }

    /// Inverts [`Answer::code`].
    pub fn from_code(code: i32) -> Self {
        match code {
            0 => Answer::Refused,
            1 => Answer::Armed,
            holder if holder < 0 => Answer::Busy((-1 - holder) as u32),
            _ => Answer::NoTracer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Answer;

    #[test]
    fn an_answer_is_what_was_meant() {
        for answer in [Answer::Armed, Answer::Refused, Answer::NoTracer, Answer::Busy(0), Answer::Busy(4_194_304)] {
            assert_eq!(Answer::from_code(answer.code()), answer);
        }
    }
}
