//! What a leader does by itself, without being asked: duties. Each proposes under its term, and lapses with it.

pub mod due;
