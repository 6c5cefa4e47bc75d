//! Where a forward pass is computed. This folder, alone in the engine besides the mapping of files, holds unsafe code.

#[expect(unsafe_code, reason = "processor instructions, and tables that threads fill side by side")]
#[expect(clippy::needless_range_loop, reason = "kernels walk several tables by one index")]
pub mod cpu;
