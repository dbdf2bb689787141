//! Flags of `bench`.

use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Rounds that give a 95 % interval of a median at the least.
const ROUNDS: u32 = 6;

/// Settings of `bench`.
#[derive(Clone, Debug, Args)]
pub struct Bench {
    /// GGUF file or folder; without it SmolLM2-135M-Instruct, fetched once
    #[arg(long, value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// What is measured
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    #[arg(default_value = "limits,engine,first-token")]
    pub only: Vec<Suite>,
    /// Times that each figure is taken, the engines in turn
    #[arg(long, value_name = "N", default_value_t = ROUNDS, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Threads that compute
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "1,2"
    )]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Vec<u16>,
    /// Lengths of prompts, in tokens
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "64,512,2048,8000"
    )]
    #[arg(value_parser = crate::tokens::tokens::<u32>)]
    pub prefill: Vec<u32>,
    /// Tokens that a sequence has when decode is measured
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "0,512,2048,8000"
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1 << 24))]
    pub depths: Vec<u32>,
    /// Sequences that are decoded at once, at the first of the depths
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "1,8,32"
    )]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    pub sequences: Vec<u16>,
    /// A Python that has llama-cpp-python, whose llama.cpp is measured beside; or none
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    pub beside: String,
    /// llama.cpp without repacked weights: for virtual machines on which these fault
    #[arg(long)]
    pub plain_buffers: bool,
    /// File for all figures, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// File for a picture of them, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// What the machine could do: reading memory, products of small numbers.
    Limits,
    /// Prefill and decode of the engine alone, beside llama.cpp.
    Engine,
    /// First and further tokens through the API, by each way of serving.
    FirstToken,
}
