// Answers, from libtorch itself, what its distributed samplers return.
//
// One case per line of standard input, one line of output per case:
//
//   random|sequential SIZE REPLICAS RANK ALLOW_DUP op op ...
//
//   eEPOCH  set_epoch        r  reset()         RSIZE  reset(new size)
//   nBATCH  next(batch)      i  index()         s      save to an archive in memory
//   l       load that archive into this sampler
//   L       load it into a new sampler of the same arguments, which replaces this one
//
// The output holds the results of the ops n and i, parted by ';': indices parted by commas, or
// "none" where next() has nothing left. Nothing here guards against what is undefined in the
// library (no replicas, an archive whose position lies beyond the slice): do not ask for it.

#include <torch/data/samplers/distributed.h>
#include <torch/serialize/archive.h>

#include <cstdint>
#include <exception>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>

namespace {

template <typename Sampler>
std::string answer(std::istringstream& line) {
  std::uint64_t size = 0, replicas = 0, rank = 0;
  int allow_duplicates = 0;
  if (!(line >> size >> replicas >> rank >> allow_duplicates) || replicas == 0) {
    throw std::invalid_argument("expected: kind SIZE REPLICAS RANK ALLOW_DUP op ...");
  }
  const auto build = [&] {
    return std::make_unique<Sampler>(size, replicas, rank, allow_duplicates != 0);
  };
  auto sampler = build();
  std::string archive, out, op;
  const auto load = [&] {
    std::istringstream bytes(archive);
    torch::serialize::InputArchive input;
    input.load_from(bytes);
    sampler->load(input);
  };

  while (line >> op) {
    const std::uint64_t value = op.size() > 1 ? std::stoull(op.substr(1)) : 0;
    if (op[0] == 'e') {
      sampler->set_epoch(value);
    } else if (op[0] == 'r') {
      sampler->reset();
    } else if (op[0] == 'R') {
      sampler->reset(value);
    } else if (op[0] == 's') {
      std::ostringstream bytes;
      torch::serialize::OutputArchive output;
      sampler->save(output);
      output.save_to(bytes);
      archive = bytes.str();
    } else if (op[0] == 'l') {
      load();
    } else if (op[0] == 'L') {
      sampler = build();
      load();
    } else if (op[0] == 'i') {
      out += std::to_string(sampler->index()) + ";";
    } else if (op[0] == 'n') {
      const auto batch = sampler->next(value);
      std::string indices;
      if (batch) {
        for (const auto index : *batch) {
          indices += (indices.empty() ? "" : ",") + std::to_string(index);
        }
      }
      out += (batch ? indices : "none") + ";";
    } else {
      throw std::invalid_argument("unknown op " + op);
    }
  }
  if (!out.empty()) {
    out.pop_back();
  }
  return out;
}

} // namespace

int main() {
  std::string text, kind;
  for (std::uint64_t number = 1; std::getline(std::cin, text); ++number) {
    std::istringstream line(text);
    try {
      line >> kind;
      if (kind == "random") {
        std::cout << answer<torch::data::samplers::DistributedRandomSampler>(line) << "\n";
      } else if (kind == "sequential") {
        std::cout << answer<torch::data::samplers::DistributedSequentialSampler>(line) << "\n";
      } else {
        throw std::invalid_argument("unknown kind " + kind);
      }
    } catch (const std::exception& error) {
      std::cerr << "case " << number << ": " << error.what() << "\n";
      return 1;
    }
  }
  return 0;
}
