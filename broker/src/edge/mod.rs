//! The border to clients: names, settings, routes, streams, and the messaging service itself.

pub mod answer_room;
pub mod clients;
pub mod front;
pub mod names;
pub mod query;
pub mod quotas;
pub mod route;
pub mod settings;
pub mod telemetry;
pub mod unread;
