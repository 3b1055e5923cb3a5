// The vocabulary of the generated trace: op trees, kernels, Python files. Texts only, no logic.
#pragma once
#include <array>
#include <string_view>

namespace names {

// An op tree: children in parentheses, '*' launches a kernel, '+' allocates, '!' carries the sequence number.
// The second text is what autograd runs for it; empty means that nothing is recorded.
struct Pattern {
    std::string_view forward;
    std::string_view node;
    std::string_view backward;
};

inline constexpr std::array patterns{
    Pattern{"aten::linear(aten::t(aten::transpose(aten::as_strided)),aten::addmm!+*)", "AddmmBackward0",
            "aten::t(aten::transpose(aten::as_strided)),aten::mm+*,aten::mm+*,aten::sum+*"},
    Pattern{"aten::matmul(aten::expand(aten::as_strided),aten::bmm!+*)", "BmmBackward0",
            "aten::transpose(aten::as_strided),aten::bmm+*,aten::bmm+*"},
    Pattern{"aten::layer_norm(aten::native_layer_norm!(aten::empty+,aten::empty+)*)", "NativeLayerNormBackward0",
            "aten::native_layer_norm_backward(aten::empty+,aten::zeros_like)*"},
    Pattern{"aten::gelu!+*", "GeluBackward0", "aten::gelu_backward+*"},
    Pattern{"aten::relu!(aten::clamp_min+*)", "ReluBackward0", "aten::threshold_backward+*"},
    Pattern{"aten::silu!+*", "SiluBackward0", "aten::silu_backward+*"},
    Pattern{"aten::dropout(aten::native_dropout!(aten::empty_like+)*)", "NativeDropoutBackward0",
            "aten::native_dropout_backward+*"},
    Pattern{"aten::softmax(aten::_softmax!+*)", "SoftmaxBackward0", "aten::_softmax_backward_data+*"},
    Pattern{"aten::log_softmax(aten::_log_softmax!+*)", "LogSoftmaxBackward0",
            "aten::_log_softmax_backward_data+*"},
    Pattern{"aten::scaled_dot_product_attention(aten::_scaled_dot_product_efficient_attention!("
            "aten::transpose(aten::as_strided),aten::_efficient_attention_forward(aten::empty+)*))",
            "ScaledDotProductEfficientAttentionBackward0",
            "aten::_scaled_dot_product_efficient_attention_backward(aten::_efficient_attention_backward("
            "aten::empty+,aten::zeros(aten::empty+,aten::zero_(aten::fill_*)))*)"},
    Pattern{"aten::embedding(aten::reshape(aten::view),aten::index_select!(aten::resize_+)*)",
            "EmbeddingBackward0", "aten::embedding_backward(aten::embedding_dense_backward("
            "aten::zeros(aten::empty+,aten::zero_(aten::fill_*)))*)"},
    Pattern{"aten::mul!+*", "MulBackward0", "aten::mul+*"},
    Pattern{"aten::add!+*", "AddBackward0", ""},
    Pattern{"aten::sub!+*", "SubBackward0", "aten::neg+*"},
    Pattern{"aten::div!+*", "DivBackward0", "aten::div+*"},
    Pattern{"aten::mean!(aten::sum+*,aten::div_*)", "MeanBackward0",
            "aten::expand(aten::as_strided),aten::div+*"},
    Pattern{"aten::sum!+*", "SumBackward1", "aten::expand(aten::as_strided)"},
    Pattern{"aten::cat!+*", "CatBackward0", "aten::narrow(aten::slice(aten::as_strided))"},
    Pattern{"aten::gather!+*", "GatherBackward0", "aten::gather_backward(aten::zeros(aten::empty+,"
            "aten::zero_(aten::fill_*)),aten::scatter_add_*)"},
    Pattern{"aten::logsumexp!(aten::amax+*,aten::sub+*,aten::exp_*,aten::sum+*,aten::log_*)",
            "LogsumexpBackward0", "aten::unsqueeze(aten::as_strided),aten::sub+*,aten::exp+*,aten::mul+*"},
    Pattern{"aten::view!", "ViewBackward0", "aten::reshape(aten::view)"},
    Pattern{"aten::transpose!(aten::as_strided)", "TransposeBackward0",
            "aten::transpose(aten::as_strided)"},
    Pattern{"aten::unsqueeze!(aten::as_strided)", "UnsqueezeBackward0", "aten::squeeze(aten::as_strided)"},
    Pattern{"aten::clone!(aten::empty_like(aten::empty_strided+),aten::copy_*)", "CloneBackward0", ""},
    Pattern{"aten::chunk(aten::split(aten::narrow(aten::slice(aten::as_strided)),"
            "aten::narrow(aten::slice(aten::as_strided))))", "", ""},
    Pattern{"aten::masked_fill(aten::clone(aten::empty_like(aten::empty_strided+),aten::copy_*),"
            "aten::masked_fill_!*)", "MaskedFillBackward0", "aten::masked_fill+*"},
    Pattern{"cortex::rtu_seq_allin_forward!+*", "_RTUStreamDiagCUDASeqAllInBackward",
            "cortex::rtu_seq_allin_backward(aten::empty_like+,aten::empty_like+)*"},
};

inline constexpr std::array plain_trees{
    "aten::zeros(aten::empty+,aten::zero_(aten::fill_*))",
    "aten::ones(aten::empty+,aten::fill_*)",
    "aten::full(aten::empty+,aten::fill_*)",
    "aten::empty+",
    "aten::empty_like(aten::empty_strided+)",
    "aten::fill_*",
    "aten::index_put_(aten::_index_put_impl_(aten::empty+,aten::reshape(aten::view))*)",
    "aten::index_copy_*",
    "aten::index_select(aten::empty+,aten::resize_)*",
    "aten::index(aten::slice(aten::as_strided),aten::reshape(aten::view))*",
    "aten::select(aten::as_strided)",
    "aten::slice(aten::as_strided)",
    "aten::expand(aten::as_strided)",
    "aten::reshape(aten::view)",
    "aten::permute(aten::as_strided)",
    "aten::squeeze(aten::as_strided)",
    "aten::detach(detach)",
    "aten::arange(aten::empty+,aten::arange(aten::resize_)*)",
    "aten::max(aten::empty+)*",
    "aten::min(aten::empty+)*",
    "aten::remainder+*",
    "aten::where(aten::expand(aten::as_strided))*",
    "aten::eq+*",
    "aten::lt+*",
    "aten::ge+*",
    "aten::logical_and+*",
    "aten::logical_not+*",
    "aten::bitwise_and+*",
    "aten::clamp+*",
    "aten::abs+*",
    "aten::isnan(aten::ne+*)",
    "aten::any+*",
    "aten::all+*",
    "aten::cumsum(aten::_cumsum+*)",
    "aten::sort(aten::empty_strided+,aten::copy_*,aten::empty+)*",
    "aten::argmax(aten::empty+)*",
    "aten::topk(aten::empty+,aten::empty+)*",
    "aten::multinomial(aten::empty+,aten::exponential_*,aten::div_*,aten::argmax*)",
    "aten::rand(aten::empty+,aten::uniform_*)",
    "aten::randn(aten::empty+,aten::normal_*)",
    "aten::roll(aten::empty_like+)*",
    "aten::stack(aten::unsqueeze(aten::as_strided),aten::cat+*)",
    "aten::repeat(aten::expand(aten::as_strided),aten::copy_*)",
    "aten::scatter_*",
    "aten::zero_(aten::fill_*)",
    "aten::contiguous(aten::clone(aten::empty_like(aten::empty_strided+),aten::copy_*))",
    "aten::copy_*",
    "aten::pow(aten::result_type,aten::to)*",
    "aten::sqrt+*",
    "aten::rsqrt+*",
    "aten::exp+*",
    "aten::log+*",
    "aten::tanh+*",
    "aten::sigmoid+*",
    "aten::std(aten::empty+)*",
    "aten::var_mean(aten::empty+,aten::empty+)*",
    "aten::nan_to_num_*",
    "aten::mul_*",
    "aten::add_*",
    "aten::lerp_*",
    "aten::unbind(aten::select(aten::as_strided),aten::select(aten::as_strided))",
    "aten::flatten(aten::view)",
    "aten::resize_",
    "aten::is_nonzero",
    "aten::result_type",
    "aten::lift_fresh",
    "aten::view",
    "aten::_unsafe_view",
    "aten::alias",
    "aten::t(aten::transpose(aten::as_strided))",
    "aten::numpy_T(aten::permute(aten::as_strided))",
    "aten::narrow(aten::slice(aten::as_strided))",
    "aten::split(aten::narrow(aten::slice(aten::as_strided)),aten::narrow(aten::slice(aten::as_strided)))",
    "aten::expand_as(aten::expand(aten::as_strided))",
    "aten::unfold(aten::as_strided)",
    "aten::movedim(aten::permute(aten::as_strided))",
    "aten::view_as(aten::view)",
    "aten::unflatten(aten::view)",
    "aten::diagonal(aten::as_strided)",
    "aten::new_empty(aten::empty+)",
    "aten::to",
    "aten::resolve_conj",
};

inline constexpr std::array optimizer_trees{
    "aten::_foreach_add_*",       "aten::_foreach_lerp_*",    "aten::_foreach_mul_*",
    "aten::_foreach_addcmul_*",   "aten::_foreach_sqrt(aten::empty_like+)*",
    "aten::_foreach_div_*",       "aten::_foreach_addcdiv_*", "aten::_foreach_norm(aten::zeros(aten::empty+))*",
    "aten::linalg_vector_norm+*", "aten::clamp(aten::empty+)*",
};

inline constexpr std::string_view item_tree = "aten::item(aten::_local_scalar_dense)";
inline constexpr std::string_view copy_tree = "aten::to(aten::_to_copy(aten::empty_strided+,aten::copy_))";
inline constexpr std::string_view pin_tree =
    "aten::pin_memory(aten::_pin_memory(aten::is_pinned,aten::empty+,aten::copy_))";
inline constexpr std::string_view grad_tree = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad("
                                              "torch::autograd::AccumulateGrad(aten::detach(detach),aten::add_*))";

inline constexpr std::array functors{
    "FillFunctor<float>", "FillFunctor<long>", "FillFunctor<unsigned char>", "CUDAFunctor_add<float>",
    "CUDAFunctorOnSelf_add<long>", "BinaryFunctor<float, float, float, binary_internal::MulFunctor<float> >",
    "BinaryFunctor<float, float, bool, (anonymous namespace)::CompareEqFunctor<float> >",
    "AUnaryFunctor<float, float, float, binary_internal::MulFunctor<float> >",
    "BUnaryFunctor<long, long, bool, CompareFunctor<long> >",
    "exp_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda()#2}::operator()() "
    "const::{lambda(float)#1}",
    "GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}::operator()() "
    "const::{lambda()#2}::operator()() const::{lambda(float)#1}",
    "(anonymous namespace)::where_kernel_impl(at::TensorIterator&)::{lambda()#1}::operator()() "
    "const::{lambda()#7}::operator()() const::{lambda(bool, float, float)#1}",
    "(anonymous namespace)::launch_clamp_scalar(at::TensorIteratorBase&, c10::Scalar, c10::Scalar, "
    "at::native::detail::ClampLimits)::{lambda()#1}::operator()() const::{lambda()#7}::operator()() "
    "const::{lambda(float)#1}",
    "sqrt_kernel_cuda(at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda()#2}::operator()() "
    "const::{lambda(float)#1}",
};

inline constexpr std::array kernels{
    "ampere_sgemm_64x64_tn", "ampere_sgemm_64x64_nn", "ampere_sgemm_128x64_nt",
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64_16x6_nt_align4>"
    "(cutlass_80_tensorop_s1688gemm_64x64_16x6_nt_align4::Params)",
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4>"
    "(cutlass_80_tensorop_s1688gemm_128x128_32x3_nn_align4::Params)",
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, "
    "cutlass::arch::Sm80, true, 64, 64, 64, true, true>::Params)",
    "fmha_cutlassB_f32_aligned_64x64_k32_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<"
    "cutlass::arch::Sm80, float, true, false, false, 64, 64, 32, false>::Params)",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int, float, "
    "float const*, float const*, float const*, float*, float*, float*)",
    "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
    "namespace)::TensorListMetadata<3>, at::native::(anonymous namespace)::PointwiseOpListFunctor<float, 3> >"
    "(at::native::(anonymous namespace)::TensorListMetadata<3>, at::native::(anonymous "
    "namespace)::PointwiseOpListFunctor<float, 3>)",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>(float*, float "
    "const*, int, int, int, bool const*, int, bool)",
    "void at_cuda_detail::cub::DeviceScanKernel<at_cuda_detail::cub::DeviceScanPolicy<long, std::plus<long> >"
    "::Policy900, long const*, long*>(long const*, long*, int)",
    "rtu_stream_diag_seq_allin_kernel", "triton_poi_fused_add_mul_0", "triton_red_fused_mean_pow_1",
};

inline constexpr std::array packages{
    "tensordict/base", "tensordict/_td", "tensordict/utils", "tensordict/nn/common", "metta/rl/trainer",
    "metta/rl/loss/ppo", "metta/rl/training/experience", "metta/agent/policy", "metta/agent/components/vit",
    "metta/sim/stats", "mettagrid/envs/mettagrid_env", "mettagrid/core", "pufferlib/vector",
    "pufferlib/emulation", "gymnasium/core", "numpy/core/fromnumeric", "numpy/core/numeric", "omegaconf/base",
    "omegaconf/dictconfig", "pydantic/main", "torch/_tensor", "torch/functional", "torch/utils/_pytree",
    "torch/_dynamo/eval_frame", "torch/_dynamo/guards", "torch/_ops", "torch/distributions/categorical",
    "torch/distributions/distribution", "torch/distributions/utils", "torch/autograd/grad_mode",
    "torch/utils/_contextlib", "torch/nn/modules/module", "torch/nn/functional", "torch/optim/optimizer",
    "torch/utils/data/dataloader", "torch/utils/data/_utils/collate", "torch/utils/data/_utils/pin_memory",
    "multiprocessing/queues", "multiprocessing/connection", "threading", "queue", "selectors", "contextlib",
    "collections/__init__", "functools", "enum", "typing", "logging/__init__", "weakref", "copy",
};

inline constexpr std::array verbs{
    "__init__", "__getattr__", "__setattr__", "__getitem__", "__setitem__", "__enter__", "__exit__", "__iter__",
    "__len__", "__new__", "__call__", "__torch_function__", "wrapper", "_get", "_set", "_set_tuple", "_get_str",
    "_validate", "_convert", "_flatten", "_unflatten", "_apply", "apply", "forward", "step", "update", "store",
    "sample", "collate", "reset", "is_locked", "batch_size", "keys", "values", "items", "select", "view",
    "reshape", "clone", "to", "device", "shape", "observe", "encode", "decode", "record", "flush", "_worker",
    "advance", "<lambda>", "<genexpr>", "<listcomp>", "put", "get", "acquire", "release", "notify", "wait",
};

inline constexpr std::array methods{
    "size", "dim", "numel", "keys", "items", "values", "get", "append", "extend", "pop", "update", "copy",
    "view", "reshape", "to", "detach", "float", "item", "copy_", "fill_", "index_copy_", "index_put_", "squeeze",
    "unsqueeze", "stride", "data_ptr", "is_floating_point", "join", "startswith", "format", "acquire", "release",
    "__enter__", "__exit__", "__new__", "mean", "max", "min", "sum", "any", "all", "expand", "permute", "clone",
};

inline constexpr std::array owners{"Tensor", "dict", "list", "type", "torch.Size", "str", "set", "tuple",
                                   "_thread.lock", "collections.OrderedDict", "numpy.ndarray", "Parameter"};

inline constexpr std::array functions{
    "isinstance", "len", "getattr", "setattr", "hasattr", "issubclass", "id", "iter", "next", "callable", "max",
    "min", "sum", "sorted", "print", "hash", "abs", "_has_torch_function_unary", "_has_torch_function_variadic",
    "is_grad_enabled", "_set_grad_enabled", "_get_cudnn_enabled", "perf_counter", "time", "monotonic",
};

struct ModuleKind {
    std::string_view name;
    std::string_view file;
    std::string_view builtin;
    int pattern;
};

inline constexpr std::array module_kinds{
    ModuleKind{"Linear", "torch/nn/modules/linear.py(130): forward", "<built-in function linear>", 0},
    ModuleKind{"LayerNorm", "torch/nn/modules/normalization.py(228): forward",
               "<built-in method layer_norm of type object at 0x7ff51a93e180>", 2},
    ModuleKind{"GELU", "torch/nn/modules/activation.py(812): forward", "<built-in function gelu>", 3},
    ModuleKind{"ReLU", "torch/nn/modules/activation.py(143): forward",
               "<built-in method relu of type object at 0x7ff51a93e180>", 4},
    ModuleKind{"SiLU", "torch/nn/modules/activation.py(466): forward",
               "<built-in function silu>", 5},
    ModuleKind{"Dropout", "torch/nn/modules/dropout.py(73): forward",
               "<built-in method dropout of type object at 0x7ff51a93e180>", 6},
    ModuleKind{"SelfAttention", "metta/agent/components/vit.py(88): forward",
               "<built-in function scaled_dot_product_attention>", 9},
    ModuleKind{"Embedding", "torch/nn/modules/sparse.py(191): forward",
               "<built-in method embedding of type object at 0x7ff51a93e180>", 10},
    ModuleKind{"RTUStream", "metta/agent/components/rtu.py(214): forward",
               "<built-in method apply of FunctionMeta object at 0x55d0a83c2b10>", 26},
};

}  // namespace names
