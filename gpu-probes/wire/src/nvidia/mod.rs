//! What both sides know of NVIDIA's files: where its libraries may lie, and how code for GPUs is stored.

pub mod cupti;
pub mod fatbin;
