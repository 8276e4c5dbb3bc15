// Prints what llama.cpp's ngram-simple drafts. Reads lines "size_n size_m token ...", the sampled token last.
//
// Build beside a checkout of llama.cpp, which is compiled as it is:
//   g++ -std=c++17 -Icommon -Iinclude -Iggml/include llama_lookup.cpp common/ngram-map.cpp -o llama_lookup
#include "common.h"
#include "log.h"
#include "ngram-map.h"

#include <iostream>
#include <sstream>

// What ngram-map.cpp links against and these cases never reach.
int common_log_get_verbosity_thold() { return -1; }
common_log * common_log_main() { return nullptr; }
void common_log_add(common_log *, enum ggml_log_level, const char *, ...) {}
extern "C" void ggml_abort(const char *, int, const char *, ...) { throw 1; }

int main() {
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream in(line);
        int n, m, token;
        in >> n >> m;
        llama_tokens tokens;
        while (in >> token) tokens.push_back(token);
        const llama_token sampled = tokens.back();
        tokens.pop_back();
        const common_ngram_simple_config config{(uint16_t) n, (uint16_t) m};
        for (const auto drafted : common_ngram_simple_draft(config, tokens, sampled)) std::cout << drafted << ' ';
        std::cout << '\n';
    }
}
