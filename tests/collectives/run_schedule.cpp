// SimGrid runs a schedule: an actor a rank, which in each step sends and receives its messages and waits for all.
//
// Input: num_ranks num_steps num_links; then src dst bytes_per_s latency_s a link; then a line a step: how many
// messages, and src dst bytes of each. Output: simulated seconds, then wall-clock seconds of the simulation alone.
#include <chrono>
#include <cstdio>
#include <simgrid/s4u.hpp>
#include <string>
#include <vector>

namespace sg = simgrid::s4u;

struct Message { int peer; double bytes; bool sends; };

int main(int argc, char** argv) {
  sg::Engine engine(&argc, argv);  // takes the --cfg options
  std::FILE* input = std::fopen(argv[1], "r");
  int ranks, steps, links;
  if (input == nullptr || std::fscanf(input, "%d %d %d", &ranks, &steps, &links) != 3) return 2;
  auto* zone = sg::create_full_zone("cluster");
  std::vector<sg::Host*> hosts;
  for (int rank = 0; rank < ranks; ++rank) hosts.push_back(zone->create_host(std::to_string(rank), 1e9)->seal());
  for (int link = 0; link < links; ++link) {
    int src, dst;
    double bytes_per_s, latency_s;
    if (std::fscanf(input, "%d %d %lf %lf", &src, &dst, &bytes_per_s, &latency_s) != 4) return 2;
    auto* wire = zone->create_link(std::to_string(src) + ">" + std::to_string(dst), bytes_per_s);
    wire->set_latency(latency_s)->seal();
    zone->add_route(hosts[src]->get_netpoint(), hosts[dst]->get_netpoint(), nullptr, nullptr,
                    {sg::LinkInRoute(wire)}, false);
  }
  zone->seal();
  std::vector<std::vector<std::vector<Message>>> plan(ranks);  // by rank, by step
  for (int step = 0; step < steps; ++step) {
    int messages;
    if (std::fscanf(input, "%d", &messages) != 1) return 2;
    for (auto& of_rank : plan) of_rank.emplace_back();
    for (int message = 0; message < messages; ++message) {
      int src, dst;
      double bytes;
      if (std::fscanf(input, "%d %d %lf", &src, &dst, &bytes) != 3) return 2;
      plan[src][step].push_back({dst, bytes, true});
      plan[dst][step].push_back({src, bytes, false});
    }
  }
  std::fclose(input);
  for (int rank = 0; rank < ranks; ++rank) {
    sg::Actor::create("rank", hosts[rank], [rank, &plan]() {
      static int payload = 0;
      for (const auto& step : plan[rank]) {
        std::vector<sg::CommPtr> open;
        std::vector<int*> got(step.size());
        for (std::size_t place = 0; place < step.size(); ++place) {
          const auto& message = step[place];
          int src = message.sends ? rank : message.peer, dst = message.sends ? message.peer : rank;
          auto* box = sg::Mailbox::by_name(std::to_string(src) + ">" + std::to_string(dst));
          if (message.sends) open.push_back(box->put_async(&payload, static_cast<uint64_t>(message.bytes)));
          else open.push_back(box->get_async<int>(&got[place]));
        }
        for (auto& comm : open) comm->wait();
      }
    });
  }
  auto begin = std::chrono::steady_clock::now();
  engine.run();
  std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  std::printf("%.12g %.6f\n", engine.get_clock(), wall.count());
}
