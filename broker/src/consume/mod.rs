//! Handing out: polls, filters, receipts, and what consumers say about them.

pub mod ack;
pub mod delivery;
pub mod filter;
pub mod lanes;
pub mod receipt_handle;
pub mod receive;
pub mod round;
pub mod sql;
