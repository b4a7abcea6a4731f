// Suffix trees for Python. Whoever calls holds the interpreter lock, which is all the order these trees have; nothing
// here runs Python's own code between the first change of a tree and the last.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "bind.hpp"
#include "require.hpp"
#include "suffix_guess.hpp"

namespace nb = nanobind;

namespace foredraft {

namespace {

using namespace suffix;

const int DEEPEST = 1 << 16;
const int MOST = 1 << 20;  // of what limits count

// The tokens of a sequence from `first` on.
std::vector<Token> tokens_of(nb::handle sequence, std::size_t first = 0) {
    const nb::object items = nb::steal(PySequence_Fast(sequence.ptr(), "tokens must be a sequence of ints"));
    if (!items.is_valid()) throw nb::python_error();
    std::vector<Token> tokens;
    const std::size_t count = std::size_t(PySequence_Fast_GET_SIZE(items.ptr()));
    if (first < count) tokens.reserve(count - first);
    for (std::size_t i = first; i < count; i++) {
        PyObject *item = PySequence_Fast_GET_ITEM(items.ptr(), Py_ssize_t(i));
        if (!PyLong_Check(item)) throw nb::type_error("tokens must be ints");
        int overflow = 0;
        const long long token = PyLong_AsLongLongAndOverflow(item, &overflow);
        const bool fits = token >= std::numeric_limits<Token>::min() && token <= std::numeric_limits<Token>::max();
        require(!overflow && fits, "a token is beyond 32 bits");
        tokens.push_back(Token(token));
    }
    return tokens;
}

std::uint32_t checked(const SuffixTree &tree, std::uint64_t sequence) {
    require(tree.holds(sequence), "the tree has no such sequence");
    return std::uint32_t(sequence);
}

// (nodes, depth, width, factor, min_prob, least)
Limits limits_of(nb::handle handle) {
    const nb::tuple parts = nb::cast<nb::tuple>(handle);
    require(parts.size() == 6, "limits are nodes, depth, width, factor, min_prob and least");
    const Limits limits{nb::cast<int>(parts[0]), nb::cast<int>(parts[1]), nb::cast<int>(parts[2]),
                        nb::cast<double>(parts[3]), nb::cast<double>(parts[4]), nb::cast<double>(parts[5])};
    require(limits.nodes >= 0 && limits.nodes <= MOST && limits.depth >= 0 && limits.depth <= MOST &&
                limits.width >= 1 && limits.width <= MOST && limits.factor >= 0 && limits.factor <= MOST,
            "a limit is negative or too large");
    return limits;
}

template <class Number, class Cast> nb::object listed(const std::vector<Number> &numbers, Cast cast) {
    nb::object list = nb::steal(PyList_New(Py_ssize_t(numbers.size())));
    for (std::size_t i = 0; list.is_valid() && i < numbers.size(); i++)
        PyList_SET_ITEM(list.ptr(), Py_ssize_t(i), cast(numbers[i]));
    return list;
}

nb::tuple told(const Draft &draft) {
    return nb::make_tuple(listed(draft.tokens, PyLong_FromLong), listed(draft.parents, PyLong_FromLong),
                          listed(draft.chances, PyFloat_FromDouble));
}

nb::object pair(const Counts &counts) { return nb::make_tuple(counts.count, counts.size); }

int bounded(std::size_t length) { return int(std::min<std::size_t>(length, DEEPEST)); }

// Guesses by a request's own text and by past ones.
struct Guessers {
    Guesser own, past;
};

// The better guess of those from a request's own text, sequence 0 of its tree, and from past ones.
nb::tuple guess_after(Guessers &guessers, SuffixTree &past, nb::handle order) {
    const nb::tuple parts = nb::cast<nb::tuple>(order);
    require(parts.size() == 3, "an order is a tree, tokens and limits");
    SuffixTree &tree = nb::cast<SuffixTree &>(parts[0]);
    const Limits limits = limits_of(parts[2]);
    const std::size_t known = tree.holds(0) ? tree.texts()[0].tokens.size() : 0;
    const std::vector<Token> more = tokens_of(parts[1], known);
    tree.extend(checked(tree, 0), more.data(), more.size());
    const Text &text = tree.texts()[0];
    const Token *end = text.tokens.data() + text.tokens.size();
    const int length = bounded(text.tokens.size());
    const Guess &own = guessers.own.best(tree, {end, length, &text}, limits, 0);
    const Guess &other = guessers.past.best(past, {end, length, nullptr}, limits, own.score);
    return told(other.tokens.empty() ? stated(own, limits.least, 1) : stated(other, limits.least, 0));
}

nb::list guesses(SuffixTree &past, const nb::list &orders) {
    Guessers guessers;
    nb::list all;
    for (nb::handle order : orders) all.append(guess_after(guessers, past, order));
    return all;
}

nb::tuple best_guess(SuffixTree &tree, nb::handle tokens, nb::handle limits, double to_beat) {
    Guesser guesser;
    const std::vector<Token> context = tokens_of(tokens);
    const Guess &guess = guesser.best(tree, {context.data() + context.size(), bounded(context.size()), nullptr},
                                      limits_of(limits), to_beat);
    return nb::make_tuple(listed(guess.tokens, PyLong_FromLong), listed(guess.parents, PyLong_FromLong),
                          listed(guess.counts, [](const Counts &its) { return pair(its).release().ptr(); }),
                          guess.matched, guess.score);
}

std::uint32_t count(const SuffixTree &tree, nb::handle tokens) {
    const std::vector<Token> string = tokens_of(tokens);
    require(!string.empty() && string.size() <= std::size_t(tree.depth()), "a string has 1 to `depth` tokens");
    return tree.find(string.data(), int(string.size())).size;
}

nb::dict texts(const SuffixTree &tree) {
    nb::dict all;
    for (std::size_t sequence = 0; sequence < tree.texts().size(); sequence++)
        if (tree.holds(sequence)) all[nb::int_(sequence)] = listed(tree.texts()[sequence].tokens, PyLong_FromLong);
    return all;
}

}  // namespace

void bind_suffix(nb::module_ &m) {
    nb::class_<SuffixTree>(m, "SuffixTree", "Counts of all strings of up to `depth` tokens in sequences.")
        .def("__init__", [](SuffixTree *self, int depth) {
            require(depth >= 1 && depth <= DEEPEST, "depth must be from 1 to 65536");
            new (self) SuffixTree(depth);
        }, nb::arg("depth"))
        .def("insert", [](SuffixTree &tree, nb::handle sequence) {
            const std::vector<Token> tokens = tokens_of(sequence);
            const std::uint32_t number = tree.insert();
            tree.extend(number, tokens.data(), tokens.size());
            return number;
        }, nb::arg("tokens"), "Add a sequence; returns its number, which is used again once it is removed.")
        .def("extend", [](SuffixTree &tree, std::uint64_t sequence, nb::handle more) {
            const std::vector<Token> tokens = tokens_of(more);
            tree.extend(checked(tree, sequence), tokens.data(), tokens.size());
        }, nb::arg("sequence"), nb::arg("tokens"), "Append tokens to a sequence.")
        .def("remove", [](SuffixTree &tree, std::uint64_t sequence) { tree.remove(checked(tree, sequence)); },
             nb::arg("sequence"), "Take a sequence out of all counts.")
        .def("count", count, nb::arg("string"), "Occurrences of a string of at most `depth` tokens.")
        .def_prop_ro("depth", &SuffixTree::depth)
        .def_prop_ro("texts", texts, "The sequences, by number.")
        .def_prop_ro("strings", [](const SuffixTree &tree) { return tree.entries().count(); },
                     "How many strings the tree holds apart: its nodes and buckets.")
        .def_prop_ro("bytes", &SuffixTree::bytes, "Memory it takes.");
    m.def("suffix_guesses", guesses, nb::arg("past"), nb::arg("orders"),
          "(tokens, parents, chances) for each (tree, tokens, limits): what most likely follows the tokens, by the "
          "tree of them alone, sequence 0, which takes in what it lacks, or by the tree of past texts.");
    m.def("best_suffix_guess", best_guess, nb::arg("tree"), nb::arg("context"), nb::arg("limits"),
          nb::arg("to_beat") = 0.0, "(tokens, parents, counts, matched, score) of the best guess by one tree.");
}

}  // namespace foredraft
