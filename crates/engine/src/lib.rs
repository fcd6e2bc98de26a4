//! Loads a model, records its plan, runs it.
