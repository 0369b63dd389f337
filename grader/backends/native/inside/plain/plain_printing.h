// Tensors as text.
#ifndef GPT149_PLAIN_PRINTING_H
#define GPT149_PLAIN_PRINTING_H

#include <ostream>

#include "plain_tensor.h"

namespace at {

// Rows longer than `line_width` characters are broken into groups of columns.
std::ostream &print(std::ostream &out, const Tensor &tensor, int64_t line_width);
std::ostream &operator<<(std::ostream &out, const Tensor &tensor);
void print(const Tensor &tensor, int64_t line_width = 80);

}  // namespace at

#endif
