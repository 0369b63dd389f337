// Tensors as text: the last two dimensions as a matrix, for each index of those before.
#ifndef GPT149_PLAIN_PRINTING_H
#define GPT149_PLAIN_PRINTING_H

#include <cmath>
#include <iomanip>
#include <iostream>

#include "plain_tensor.h"

namespace at {

// Elements with four decimals, or none where all are whole. torch also scales very large and very small numbers.
inline std::vector<std::string> element_texts(const Tensor &tensor) {
  const Tensor values = tensor.to(ScalarType::Double).contiguous();
  const double *first = values.data_ptr<double>(), *last = first + values.numel();
  const bool are_whole = std::all_of(first, last, [](double value) { return value == std::floor(value); });
  std::vector<std::string> texts;
  for (const double *value = first; value != last; value++) {
    std::ostringstream text;
    text << std::fixed << std::setprecision(are_whole ? 0 : 4) << *value;
    texts.push_back(text.str());
  }
  return texts;
}

// One dimension is a column. Rows after the first are indented. All elements are as wide as the widest, a place for a sign included.
inline void print_rows(std::ostream &out, const Tensor &tensor, const char *indent) {
  const std::vector<std::string> texts = element_texts(tensor);
  size_t width = 0;
  for (const std::string &text : texts) width = std::max(width, text.size() + (text[0] == '-' ? 0 : 1));
  const size_t columns = tensor.dim() == 2 ? static_cast<size_t>(tensor.size(1)) : 1;
  for (size_t k = 0; k < texts.size(); k++) {
    const size_t column = k % columns;
    out << (column > 0 ? " " : k > 0 ? indent : "") << std::setw(static_cast<int>(width)) << texts[k];
    if (column + 1 == columns) out << '\n';
  }
}

// The last two dimensions under each index of those before, the first of which runs fastest.
inline void print_matrices(std::ostream &out, const Tensor &tensor) {
  int64_t count = 1;
  for (int64_t k = 0; k < tensor.dim() - 2; k++) count *= tensor.size(k);
  for (int64_t each = 0; each < count; each++) {
    Tensor matrix = tensor;
    out << (each > 0 ? "\n(" : "(");
    for (int64_t rest = each; matrix.dim() > 2;) {
      const int64_t size = matrix.size(0), index = rest % size;
      out << index + 1 << ',';
      rest /= size;
      matrix = matrix[index];
    }
    out << ".,.) = \n";
    print_rows(out, matrix, " ");
  }
}

inline std::ostream &operator<<(std::ostream &out, const Tensor &tensor) {
  if (!tensor.defined()) return out << "[ Tensor (undefined) ]";
  if (tensor.dim() == 0) out << tensor.item<double>() << '\n';
  else if (tensor.dim() > 2 && tensor.numel() > 0) print_matrices(out, tensor);
  else print_rows(out, tensor, "");
  out << "[ " << tensor.toString() << '{';
  for (int64_t k = 0; k < tensor.dim(); k++) out << (k > 0 ? "," : "") << tensor.size(k);
  return out << "} ]";
}

inline void print(const Tensor &tensor) { std::cout << tensor << '\n'; }

}  // namespace at

#endif
