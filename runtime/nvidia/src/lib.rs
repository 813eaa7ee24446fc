//! The tracer's side of NVIDIA's GPUs: what of a run is different with another vendor's.
//!
//! ```text
//! a process starts CUDA   drivers    which processes use the driver, and whether the collector came
//!                         injection  how the driver is told to load the collector
//! it connects             choosing   twins or patches: by the kernels in its files (kernels)
//! it loads code           twins      makes what its kernels run, on threads
//! it has a context        programs   who runs programs of kprobe/__directly_run (own_process: xputrace itself)
//! it ends                 twins      what became of its device code
//! ```
//!
//! What the user should know is returned as text. Nothing here prints, or knows the command line and what a run is.

pub mod choosing;
pub mod drivers;
pub mod facts;
pub mod injection;
pub mod kernels;
pub mod own_process;
pub mod programs;
pub mod twins;
pub mod unfinished;
pub mod ways;
