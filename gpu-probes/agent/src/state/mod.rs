//! What a run and a thread keep. Nothing in here knows the run: `agent` puts it together, and the modules beside it do with it
//! what they do.

pub(crate) mod counters;
pub(crate) mod forks;
pub(crate) mod held;
pub(crate) mod host_call;
pub(crate) mod launch;
pub(crate) mod nodes;
pub(crate) mod output;
pub(crate) mod run_address;
pub(crate) mod selection;
pub(crate) mod switching;
pub(crate) mod this_thread;
pub(crate) mod window;
pub(crate) mod yielding;
