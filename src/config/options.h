/* Every option of a config, defined once. The struct of values, the reader's table, the checks,
 * `weft help config`, config.json and the Kconfig file are all made from this list.
 *
 *   BOOL(field, KEY, default, depends, help)
 *   INT(field, KEY, default, min, max, depends, help)
 *   NUMBER(field, KEY, default, min, max, depends, help)      a number with a point
 *   WORD(field, KEY, default, "a b c", depends, help)         one of a few words, stored by index
 *   TEXT(field, KEY, default, depends, help)
 *
 * KEY is the config name without CONFIG_. `depends` is Kconfig's expression for when the option
 * matters, "" for always; a value set where it does not matter is kept and ignored. */
#ifndef WEFT_CONFIG_OPTIONS_H
#define WEFT_CONFIG_OPTIONS_H

#define WEFT_OPTIONS(GROUP, BOOL, INT, NUMBER, WORD, TEXT)                                         \
    GROUP("Model")                                                                                 \
    WORD(attention, ATTENTION, "dot", "dot w2 mla", "",                                            \
         "What scores a pair of tokens: dot (the scaled product), w2 (the Wasserstein-2 distance " \
         "of two Gaussians), mla (the product in one latent space that all heads share).")         \
    WORD(                                                                                          \
        ffn, FFN, "gelu", "gelu swiglu wsffn", "",                                                 \
        "Feed-forward: gelu (GPT-2's), swiglu (gated, three matrices), wsffn (swiglu with latent " \
        "z-heads and auxiliary losses in training).")                                              \
    WORD(                                                                                          \
        position, POSITION, "learned", "learned rope alibi relative none", "",                     \
        "How order enters: a learned table, rotation, a slope a head, a learned bias a distance, " \
        "or not at all.")                                                                          \
    WORD(norm, NORM, "layernorm", "layernorm rmsnorm", "",                                         \
         "LayerNorm (eps 1e-5) or RMSNorm (eps "                                                   \
         "1e-6).")                                                                                 \
    WORD(norm_placement, NORM_PLACEMENT, "pre", "pre post", "",                                    \
         "Norm before each branch (pre) or after the sum (post).")                                 \
    INT(n_layer, N_LAYER, 12, 1, 1024, "", "Layers.")                                              \
    INT(n_head, N_HEAD, 12, 1, 1024, "", "Query heads; must divide N_EMBD.")                       \
    INT(n_embd, N_EMBD, 768, 1, 65536, "", "Width of the residual stream.")                        \
    INT(n_ffn, N_FFN, 0, 0, 1048576, "", "Width of the feed-forward; 0 is 4 x N_EMBD.")            \
    INT(kv_heads, KV_HEADS, 0, 0, 1024, "ATTENTION = \"dot\"",                                     \
        "Key and value heads, each shared by a group of query heads; 0 is N_HEAD. Fewer make the " \
        "cache smaller.")                                                                          \
    INT(vocab_size, VOCAB_SIZE, 50304, 1, 16777216, "",                                            \
        "Tokens the model knows. GPT-2's 50257, padded to a multiple of 64, is 50304.")            \
    INT(gpt2_block_size, GPT2_BLOCK_SIZE, 1024, 1, 1048576, "", "Tokens in a sequence.")           \
    BOOL(gpt2_weight_tying, GPT2_WEIGHT_TYING, true, "",                                           \
         "The head uses the token embedding's matrix.")                                            \
    BOOL(gpt2_bias, GPT2_BIAS, true, "",                                                           \
         "Biases in LayerNorm, in dot's projections and in gelu. Nothing else ever has any.")      \
    NUMBER(gpt2_dropout, GPT2_DROPOUT, 0.0, 0, 0.99, "",                                           \
           "Share of each residual branch's numbers set to zero in training.")                     \
    NUMBER(lambda_logits_z, LAMBDA_LOGITS_Z, 0.0, 0, 1e3, "",                                      \
           "Weight of the z-loss: the mean of the squared logsumexp of the logits.")               \
    BOOL(logits_z_detach, LOGITS_Z_DETACH, false, "",                                              \
         "The z-loss as its seed wrote it: reported, but without a gradient.")                     \
    BOOL(causal, CAUSAL, true, "",                                                                 \
         "A token sees itself and those before it. n sees all, and "                               \
         "cannot generate.")                                                                       \
    BOOL(allow_future_leak, ALLOW_FUTURE_LEAK, false, "",                                          \
         "Permits mechanisms through which a token sees later ones. Such a run is marked LEAKS.")  \
    TEXT(tokenizer, TOKENIZER, "bytes", "", "bytes, or the file of a tokenizer.")                  \
    GROUP("W2 attention")                                                                          \
    WORD(w2_kernel, W2_KERNEL, "w2", "w2 overlap", "ATTENTION = \"w2\"",                           \
         "w2: minus the squared distance over a temperature. overlap: the logarithm of the "       \
         "Gaussians' overlap, without a temperature.")                                             \
    NUMBER(w2_tau, W2_TAU, 0.0, 0, 1e6, "ATTENTION = \"w2\" || RA_MLA_SCORE = \"w2\"",             \
           "The temperature's start; 0 is 2 sqrt(D).")                                             \
    BOOL(w2_tau_learned, W2_TAU_LEARNED, true, "ATTENTION = \"w2\" || RA_MLA_SCORE = \"w2\"",      \
         "Train a temperature a head; n keeps the start.")                                         \
    GROUP("WsFFN")                                                                                 \
    INT(wsffn_n_head, WSFFN_N_HEAD, 8, 1, 65536, "FFN = \"wsffn\"",                                \
        "z-heads; must divide the feed-forward's width.")                                          \
    WORD(                                                                                          \
        wsffn_z_proj, WSFFN_Z_PROJ, "dense", "dense grouped", "FFN = \"wsffn\"",                   \
        "dense: one F x F matrix, block-diagonal at the start. grouped: it stays so, at 1/n_head " \
        "of the work.")                                                                            \
    NUMBER(wsffn_lambda_z, WSFFN_LAMBDA_Z, 1e-5, 0, 1e3, "FFN = \"wsffn\"",                        \
           "Weight of the mean squared norm of z.")                                                \
    NUMBER(wsffn_lambda_c, WSFFN_LAMBDA_C, 5e-3, 0, 1e3, "FFN = \"wsffn\"",                        \
           "Weight of the contrastive loss.")                                                      \
    NUMBER(wsffn_tau, WSFFN_TAU, 0.07, 1e-4, 1e3, "FFN = \"wsffn\"",                               \
           "Temperature of the contrastive loss.")                                                 \
    BOOL(wsffn_aux_loss, WSFFN_AUX_LOSS, true, "FFN = \"wsffn\"",                                  \
         "Compute z and its losses in training; n for finetuning.")                                \
    GROUP("MLA")                                                                                   \
    INT(ra_mla_latent_dim, RA_MLA_LATENT_DIM, 128, 1, 65536, "ATTENTION = \"mla\"",                \
        "Width of the latent that all heads share: the cache holds twice this a token and layer.") \
    INT(ra_mla_ra_window, RA_MLA_RA_WINDOW, 64, 0, 1048576, "ATTENTION = \"mla\"",                 \
        "Reach of reciprocal scoring, in tokens.")                                                 \
    NUMBER(ra_mla_ra_alpha, RA_MLA_RA_ALPHA, 0.0, 0, 1e3, "ATTENTION = \"mla\"",                   \
           "Weight of reciprocal scoring; 0 is off.")                                              \
    BOOL(ra_mla_per_head_q_latent, RA_MLA_PER_HEAD_Q_LATENT, true, "ATTENTION = \"mla\"",          \
         "Each head has its own map into the latent; n shares one.")                               \
    BOOL(ra_mla_per_head_v_up, RA_MLA_PER_HEAD_V_UP, true, "ATTENTION = \"mla\"",                  \
         "Each head has its own map out of the latent; n shares one.")                             \
    BOOL(ra_mla_use_rope, RA_MLA_USE_ROPE, false, "ATTENTION = \"mla\"",                           \
         "Rotate queries and keys in the latent, whatever POSITION is.")                           \
    BOOL(ra_mla_joint_kv, RA_MLA_JOINT_KV, false, "ATTENTION = \"mla\"",                           \
         "One latent for keys and values: half the cache.")                                        \
    WORD(ra_mla_score, RA_MLA_SCORE, "dot", "dot w2", "ATTENTION = \"mla\"",                       \
         "Score in the latent: the product, or the Wasserstein-2 distance.")                       \
    GROUP("Reciprocal feed-forward")                                                               \
    BOOL(attn_gate, RA_MLA_MLP_ATTN_GATE, false, "",                                               \
         "Mechanism 1: the feed-forward gates the next layer's heads.")                            \
    NUMBER(gate_alpha, RA_MLA_MLP_GATE_ALPHA, 0.1, 0, 1, "RA_MLA_MLP_ATTN_GATE",                   \
           "How much of a head the gate may take away.")                                           \
    INT(gate_dim, RA_MLA_MLP_GATE_DIM, 64, 1, 65536, "RA_MLA_MLP_ATTN_GATE",                       \
        "Width inside the gate.")                                                                  \
    WORD(gate_pool, RA_MLA_MLP_GATE_POOL, "token", "token cummean sequence",                       \
         "RA_MLA_MLP_ATTN_GATE",                                                                   \
         "What a token's gate sees: itself, the mean so far, or (the seed's, which leaks the "     \
         "future) the whole sequence.")                                                            \
    BOOL(cross_token, RA_MLA_MLP_CROSS_TOKEN, false, "",                                           \
         "Mechanism 2: the feed-forward gathers from other tokens by attention's weights.")        \
    NUMBER(cross_alpha, RA_MLA_MLP_CROSS_ALPHA, 0.3, 0, 1e3, "RA_MLA_MLP_CROSS_TOKEN",             \
           "Weight of what is gathered.")                                                          \
    INT(cross_rank, RA_MLA_MLP_CROSS_RANK, 0, 0, 1048576, "RA_MLA_MLP_CROSS_TOKEN",                \
        "Rank of the matrix behind it; 0 is full. A low rank caches that many numbers a token.")   \
    WORD(sparse_mode, RA_MLA_MLP_SPARSE_MODE, "topk", "topk rms none", "RA_MLA_MLP_CROSS_TOKEN",   \
         "Which weights are kept: the k largest of a row, those above a share of its root mean "   \
         "square, or all.")                                                                        \
    INT(sparse_k, RA_MLA_MLP_SPARSE_K, 8, 1, 1024, "RA_MLA_MLP_CROSS_TOKEN", "k of topk.")         \
    NUMBER(sparse_rms_threshold, RA_MLA_MLP_SPARSE_RMS_THRESHOLD, 0.5, 0, 1e3,                     \
           "RA_MLA_MLP_CROSS_TOKEN", "The share of rms.")                                          \
    BOOL(sparse_normalize, RA_MLA_MLP_SPARSE_NORMALIZE, true, "RA_MLA_MLP_CROSS_TOKEN",            \
         "Divide the kept weights by their sum.")                                                  \
    BOOL(sparse_head_average, RA_MLA_MLP_SPARSE_HEAD_AVERAGE, true, "RA_MLA_MLP_CROSS_TOKEN",      \
         "Average the heads' weights; n takes the largest.")                                       \
    BOOL(latent_recip, RA_MLA_MLP_LATENT_RECIP, false, "",                                         \
         "Mechanism 3: attention's latent and the feed-forward feed each other. Needs mla.")       \
    NUMBER(recip_alpha, RA_MLA_MLP_RECIP_ALPHA, 0.2, 0, 1e3, "RA_MLA_MLP_LATENT_RECIP",            \
           "Weight of both directions.")                                                           \
    INT(mlp_latent_dim, RA_MLA_MLP_LATENT_DIM, 128, 1, 65536, "RA_MLA_MLP_LATENT_RECIP",           \
        "Width between feed-forward and latent (untied).")                                         \
    WORD(tying_mode, RA_MLA_MLP_TYING_MODE, "tied_transpose",                                      \
         "untied tied_transpose per_head_scalar", "RA_MLA_MLP_LATENT_RECIP",                       \
         "Matrices of the two directions: three of them, one and its transpose, or 2 x N_HEAD "    \
         "numbers for the whole model.")                                                           \
    GROUP("Training")                                                                              \
    TEXT(dataset, DATASET, "embedded", "",                                                         \
         "embedded (text made by the program), recall, entailment, or a folder of token shards.")  \
    INT(batch_size, BATCH_SIZE, 8, 1, 1048576, "", "Sequences a micro-step.")                      \
    INT(gpt2_gradient_accumulation, GPT2_GRADIENT_ACCUMULATION, 1, 1, 1048576, "",                 \
        "Micro-steps whose gradients make one step.")                                              \
    INT(micro_batch, MICRO_BATCH, 0, 0, 1048576, "",                                               \
        "Sequences in one graph run; divides BATCH_SIZE; 0 is BATCH_SIZE. Fewer take less "        \
        "memory.")                                                                                 \
    BOOL(recompute, RECOMPUTE, false, "",                                                          \
         "Make each layer's activations again in the backward pass instead of storing them: less " \
         "memory, a third more time at most.")                                                     \
    INT(gpt2_max_iters, GPT2_MAX_ITERS, 10400, 1, 1000000000, "", "Steps.")                        \
    NUMBER(learning_rate, LEARNING_RATE, 6e-4, 0, 1e3, "", "The highest learning rate.")           \
    NUMBER(gpt2_min_lr, GPT2_MIN_LR, 6e-5, 0, 1e3, "", "Where the schedule ends.")                 \
    INT(gpt2_warmup_steps, GPT2_WARMUP_STEPS, 200, 0, 1000000000, "", "Steps of linear warm-up.")  \
    BOOL(gpt2_decay_lr, GPT2_DECAY_LR, true, "", "Lower the rate by the schedule; n keeps it.")    \
    WORD(lr_schedule, LR_SCHEDULE, "cosine", "cosine constant wsd", "",                            \
         "cosine to the end, constant, or wsd: stable, then linear over the last fifth.")          \
    NUMBER(weight_decay, WEIGHT_DECAY, 0.1, 0, 1e3, "",                                            \
           "Decoupled decay of tensors of two or more dimensions.")                                \
    NUMBER(grad_clip, GRAD_CLIP, 1.0, 0, 1e9, "", "Largest norm of the gradient; 0 is none.")      \
    WORD(optimizer, OPTIMIZER, "adamw", "adamw adamwspam", "",                                     \
         "AdamW, or AdamW with spike detection, spike clipping and momentum resets.")              \
    NUMBER(adam_beta1, ADAM_BETA1, 0.9, 0, 0.999999, "", "Decay of the first moment.")             \
    NUMBER(adam_beta2, ADAM_BETA2, 0.95, 0, 0.999999, "", "Decay of the second moment.")           \
    NUMBER(adam_eps, ADAM_EPS, 1e-8, 0, 1, "", "Added to the root of the second moment.")          \
    BOOL(spam_amsgrad, SPAM_AMSGRAD, true, "OPTIMIZER = \"adamwspam\"",                            \
         "Divide by the largest second moment so far.")                                            \
    NUMBER(spam_theta, SPAM_THETA, 50.0, 0, 1e12, "OPTIMIZER = \"adamwspam\"",                     \
           "Spike clipping: a squared gradient is held under this many second moments.")           \
    BOOL(spam_enable_clip, SPAM_ENABLE_CLIP, true, "OPTIMIZER = \"adamwspam\"",                    \
         "Spike clipping on.")                                                                     \
    NUMBER(spam_spike_threshold, SPAM_SPIKE_THRESHOLD, 2.0, 0, 1e9, "OPTIMIZER = \"adamwspam\"",   \
           "Standard deviations of the gradient's norm that make a spike.")                        \
    BOOL(spam_periodic_reset, SPAM_PERIODIC_RESET, true, "OPTIMIZER = \"adamwspam\"",              \
         "Set the moments to zero every SPAM_INTERVAL steps.")                                     \
    INT(spam_interval, SPAM_INTERVAL, 1000, 1, 16777215, "OPTIMIZER = \"adamwspam\"",              \
        "Steps between resets.")                                                                   \
    BOOL(spam_warmup, SPAM_WARMUP, true, "OPTIMIZER = \"adamwspam\"",                              \
         "Warm the learning rate up after a reset.")                                               \
    INT(spam_warmup_steps, SPAM_WARMUP_STEPS, 1000, 1, 16777215, "OPTIMIZER = \"adamwspam\"",      \
        "Steps of that warm-up.")                                                                  \
    INT(gpt2_eval_interval, GPT2_EVAL_INTERVAL, 100, 1, 1000000000, "",                            \
        "Steps between evaluations.")                                                              \
    INT(gpt2_eval_samples, GPT2_EVAL_SAMPLES, 20, 1, 1000000, "", "Batches of an evaluation.")     \
    INT(gpt2_log_interval, GPT2_LOG_INTERVAL, 10, 1, 1000000000, "", "Steps between log lines.")   \
    BOOL(save_checkpoint, SAVE_CHECKPOINT, true, "", "Write checkpoints.")                         \
    INT(checkpoint_interval, CHECKPOINT_INTERVAL, 500, 1, 1000000000, "",                          \
        "Steps between checkpoints.")                                                              \
    INT(checkpoint_keep, CHECKPOINT_KEEP, 1, 1, 1000000, "",                                       \
        "Checkpoints kept beside the best one: the last, and before it those of earlier steps.")   \
    INT(seed, SEED, 1, 0, 9007199254740991, "", "Start of every random number.")                   \
    WORD(dtype, DTYPE, "f32", "f32 bf16 f64", "",                                                  \
         "Numbers: f32; bf16 with f32 masters; f64, CPU "                                          \
         "only, for checks.")                                                                      \
    WORD(device, DEVICE, "auto", "auto cpu cuda", "",                                              \
         "Where to run; auto takes a GPU if there is "                                             \
         "one.")                                                                                   \
    WORD(init, INIT, "normal", "normal orthogonal", "", "How weights start.")                      \
    GROUP("Study")                                                                                 \
    TEXT(ra_mla_ablation_steps, RA_MLA_ABLATION_STEPS, "", "",                                     \
         "Steps of the reciprocal ablation, such as \"0,1,2,3,4,5\"; empty where STUDY_STEPS "     \
         "names the steps, or where the study is of this one config.")                             \
    TEXT(study_steps, STUDY_STEPS, "", "RA_MLA_ABLATION_STEPS = \"\"",                             \
         "Named steps, each with its changes to this config: NAME [vs BASE]: KEY=VALUE "           \
         "KEY=VALUE; NAME2: ... A step is compared with BASE, else with the first one.")           \
    INT(study_seeds, STUDY_SEEDS, 1, 1, 1000, "", "Seeds a step: SEED, SEED+1 and so on.")         \
    TEXT(study_learning_rates, STUDY_LEARNING_RATES, "", "",                                       \
         "Learning rates to sweep, with commas; empty is LEARNING_RATE alone.")                    \
    WORD(study_equal, STUDY_EQUAL, "iters", "iters tokens parameters flops time", "",              \
         "What the steps have in common.")                                                         \
    WORD(study_score, STUDY_SCORE, "val_loss", "val_loss train_loss metric", "",                   \
         "What the verdicts are about: the held-out loss after the last step, the mean training "  \
         "cross-entropy of the last STUDY_TAIL steps, or the dataset's own metric (higher is "     \
         "better).")                                                                               \
    INT(study_tail, STUDY_TAIL, 100, 1, 1000000000, "STUDY_SCORE = \"train_loss\"",                \
        "Steps whose mean makes train_loss.")

#endif
