//! Handing out: polls, filters, receipts, and what consumers say about them.

pub mod ack;
pub mod delivery;
pub mod farewell;
pub mod filter;
pub mod frames;
pub mod give_up;
pub mod lanes;
pub mod members;
pub mod offsets;
pub mod pull;
pub mod receipt_handle;
pub mod receive;
pub mod renewal;
pub mod replica_read;
pub mod round;
pub mod sql;
