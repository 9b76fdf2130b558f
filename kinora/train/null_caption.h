#pragma once

namespace kinora::train {

struct Run;

/// Gives the model of a new run what it reads for captions that are dropped
/// (models::Model::null_caption): the states that text.encoder makes of an empty one, piece by
/// piece up to model.text_tokens. Without text.encoder it stays as it is. Nothing for models with a
/// null embedding of their own. All ranks call it, and go on with rank 0's. Errors of
/// inference::open_text_encoder().
void fill_null_caption(Run& run);

}  // namespace kinora::train
