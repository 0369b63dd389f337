// Tensors as text, as torch prints them: the last two dimensions as a matrix, for each index of those before.
#include "plain_printing.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iomanip>
#include <iostream>

#include "plain_factories.h"

namespace at {
namespace {

// The stream's own format comes back with the end.
class Format {
 public:
  explicit Format(std::ostream &out) : out_(out), saved_(nullptr) { saved_.copyfmt(out); }
  ~Format() { out_.copyfmt(saved_); }
  Format(const Format &) = delete;
  Format &operator=(const Format &) = delete;

 private:
  std::ostream &out_;
  std::ios saved_;
};

// How the elements of one matrix are shown: divided by `scale`, in so many characters. 10 to the exponent is the first
// power of ten that is larger than the number.
struct Shown {
  double scale = 1;
  int width = 0;
};

double exponent_of(double number) { return number == 0 ? 1 : std::floor(std::log10(number)) + 1; }

Shown format_for(std::ostream &out, const double *first, int64_t count) {
  if (count == 0) return {};
  bool are_whole = true, is_any = false;
  double smallest = 1, largest = 1;
  for (int64_t k = 0; k < count; k++) {
    const double size = std::fabs(first[k]);
    if (!std::isfinite(size)) continue;
    are_whole = are_whole && size == std::ceil(size);
    smallest = is_any ? std::min(smallest, size) : size;
    largest = is_any ? std::max(largest, size) : size;
    is_any = true;
  }
  const double low = is_any ? exponent_of(smallest) : 1, high = is_any ? exponent_of(largest) : 1;
  if (are_whole && high <= 9) {
    out << std::defaultfloat;
    return {1, static_cast<int>(high) + 1};
  }
  if (are_whole || high - low > 4) {
    out << std::scientific << std::setprecision(4);
    return {1, !are_whole && (std::fabs(high) > 99 || std::fabs(low) > 99) ? 12 : 11};
  }
  out << std::fixed << std::setprecision(4);
  if (high > 5 || high < 0) return {std::pow(10, high - 1), 7};
  return {1, high == 0 ? 7 : static_cast<int>(high) + 6};
}

// As few digits as tell this number from all others; with an exponent below 1e-4 and from 1e16 on.
std::string shortest(double number) {
  char text[40];
  for (int digits = 1; digits <= 17; digits++) {
    std::snprintf(text, sizeof text, "%.*e", digits - 1, number);
    if (!std::isfinite(number) || std::strtod(text, nullptr) == number) {
      const char *mark = std::strchr(text, 'e');
      const int exponent = mark != nullptr ? std::atoi(mark + 1) : 0;
      if (mark != nullptr && -4 <= exponent && exponent < 16)
        std::snprintf(text, sizeof text, "%.*f", std::max(0, digits - 1 - exponent), number);
      break;
    }
  }
  return text;
}

void print_scale(std::ostream &out, double scale) { out << shortest(scale) << " *\n"; }

void print_matrix(std::ostream &out, const Tensor &matrix, int64_t line_width, int indent) {
  const std::string margin(static_cast<size_t>(indent), ' ');
  const double *first = matrix.const_data_ptr<double>();
  const int64_t rows = matrix.size(0), columns = matrix.size(1);
  const Shown shown = format_for(out, first, matrix.numel());
  // Where not one column fits torch prints nothing without end.
  const int64_t in_a_line = std::max<int64_t>(1, (line_width - indent) / (shown.width + 1));
  for (int64_t from = 0; from < columns; from += in_a_line) {
    const int64_t to = std::min(from + in_a_line, columns);
    if (in_a_line < columns) {
      if (from > 0) out << '\n';
      out << "Columns " << from + 1 << " to " << to << margin;
    }
    if (shown.scale != 1) {
      print_scale(out, shown.scale);
      out << margin;
    }
    for (int64_t row = 0; row < rows; row++) {
      for (int64_t column = from; column < to; column++)
        out << std::setw(shown.width) << first[row * columns + column] / shown.scale << (column + 1 < to ? ' ' : '\n');
      if (row + 1 < rows) out << margin << (shown.scale != 1 ? " " : "");
    }
  }
}

// The last two dimensions under each index of those before, the first of which runs fastest.
void print_matrices(std::ostream &out, const Tensor &tensor, int64_t line_width) {
  int64_t count = 1;
  for (int64_t k = 0; k < tensor.dim() - 2; k++) count *= tensor.size(k);
  for (int64_t each = 0; each < count; each++) {
    Tensor matrix = tensor;
    out << (each > 0 ? "\n(" : "(");
    for (int64_t rest = each; matrix.dim() > 2;) {
      const int64_t size = matrix.size(0), index = rest % size;
      out << index + 1 << ',';
      rest /= size;
      matrix = matrix.select(0, index);
    }
    out << ".,.) = \n";
    print_matrix(out, matrix, line_width, 1);
  }
}

}  // namespace

std::ostream &print(std::ostream &out, const Tensor &tensor, int64_t line_width) {
  const Format kept(out);
  if (!tensor.defined()) return out << "[ Tensor (undefined) ]";
  const Tensor values = tensor.to(ScalarType::Double).contiguous();
  const double *first = values.const_data_ptr<double>();
  if (values.dim() == 0) {
    out << shortest(*first) << '\n';
  } else if (values.numel() > 0 && values.dim() == 1) {
    const Shown shown = format_for(out, first, values.numel());
    if (shown.scale != 1) print_scale(out, shown.scale);
    for (int64_t k = 0; k < values.numel(); k++) out << std::setw(shown.width) << first[k] / shown.scale << '\n';
  } else if (values.numel() > 0) {
    if (values.dim() == 2) print_matrix(out, values, line_width, 0);
    else print_matrices(out, values, line_width);
  }
  out << "[ " << tensor.toString() << '{';
  for (int64_t k = 0; k < tensor.dim(); k++) out << (k > 0 ? "," : "") << tensor.size(k);
  return out << "} ]";
}
std::ostream &operator<<(std::ostream &out, const Tensor &tensor) { return print(out, tensor, 80); }
void print(const Tensor &tensor, int64_t line_width) { print(std::cout, tensor, line_width); }

}  // namespace at
