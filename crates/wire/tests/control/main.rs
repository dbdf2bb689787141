//! Real sockets, real certificates.

mod cluster;
mod frames;
mod refusals;
