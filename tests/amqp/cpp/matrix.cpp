// Send one message for each line of values, or receive them and print what came.
// Usage: matrix send|receive PORT ADDRESS COUNT < LINES     (each line: TYPE TEXT)
#include <proton/annotation_key.hpp>
#include <proton/connection.hpp>
#include <proton/container.hpp>
#include <proton/delivery.hpp>
#include <proton/message.hpp>
#include <proton/messaging_handler.hpp>
#include <proton/receiver_options.hpp>
#include <proton/sender.hpp>
#include <proton/tracker.hpp>
#include <proton/types.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

using proton::value;
typedef std::pair<std::string, std::string> line;

std::string unhex(const std::string &text) {
    std::string bytes;
    for (size_t at = 0; at + 1 < text.size(); at += 2)
        bytes += char(std::stoi(text.substr(at, 2), nullptr, 16));
    return bytes;
}

template <class Bytes> std::string hex(const Bytes &bytes) {
    std::string text;
    for (unsigned char each : bytes) {
        char two[3];
        std::snprintf(two, sizeof two, "%02x", each);
        text += two;
    }
    return text;
}

template <class T> T from_hex(const std::string &text) { // of a byte array
    T made;
    std::string bytes = unhex(text);
    std::copy(bytes.begin(), bytes.end(), made.begin());
    return made;
}

template <class T> T reversed(T bytes) { // this client keeps them as a number of the computer
    std::reverse(bytes.begin(), bytes.end());
    return bytes;
}

template <class Whole, class Real> Real real(const std::string &text) {
    Whole bits = Whole(std::stoull(text, nullptr, 16));
    Real made;
    std::memcpy(&made, &bits, sizeof made);
    return made;
}

template <class Whole, class Real> std::string bits(Real number) {
    Whole found;
    std::memcpy(&found, &number, sizeof found);
    char text[17];
    std::snprintf(text, sizeof text, "%0*llx", int(2 * sizeof found), (unsigned long long)found);
    return text;
}

value list() {
    std::vector<value> inner = {value(true), value()}, all;
    std::map<std::string, value> map = {{"k", value(2.5)}};
    all = {value(int32_t(1)), value("two"), value(inner), value(map)};
    return all;
}

value map() { return std::map<std::string, value>{{"k", list()}}; }

proton::binary large(size_t size) {
    proton::binary bytes(size);
    for (size_t at = 0; at < size; ++at) bytes[at] = uint8_t(at % 251);
    return bytes;
}

value make(const std::string &type, const std::string &text) {
    if (type == "boolean") return text == "true";
    if (type == "ubyte") return uint8_t(std::stoul(text));
    if (type == "ushort") return uint16_t(std::stoul(text));
    if (type == "uint") return uint32_t(std::stoul(text));
    if (type == "ulong") return uint64_t(std::stoull(text));
    if (type == "byte") return int8_t(std::stoi(text));
    if (type == "short") return int16_t(std::stoi(text));
    if (type == "int") return int32_t(std::stol(text));
    if (type == "long") return int64_t(std::stoll(text));
    if (type == "float") return real<uint32_t, float>(text);
    if (type == "double") return real<uint64_t, double>(text);
    if (type == "decimal32") return reversed(from_hex<proton::decimal32>(text));
    if (type == "decimal64") return reversed(from_hex<proton::decimal64>(text));
    if (type == "decimal128") return from_hex<proton::decimal128>(text);
    if (type == "char") return wchar_t(std::stoul(text));
    if (type == "timestamp") return proton::timestamp(std::stoll(text));
    if (type == "binary") return proton::binary(unhex(text));
    if (type == "string") return unhex(text);
    if (type == "symbol") return proton::symbol(text);
    if (type == "list") return list();
    if (type == "map") return map();
    if (type == "large") return large(std::stoul(text));
    if (type == "uuid") {
        std::string digits;
        for (char each : text)
            if (each != '-') digits += each;
        return from_hex<proton::uuid>(digits);
    }
    return value(); // null
}

std::string show(const std::string &type, const value &v) {
    switch (v.type()) {
    case proton::NULL_TYPE: return "null";
    case proton::FLOAT: return bits<uint32_t>(proton::get<float>(v));
    case proton::DOUBLE: return bits<uint64_t>(proton::get<double>(v));
    case proton::DECIMAL32: return hex(reversed(proton::get<proton::decimal32>(v)));
    case proton::DECIMAL64: return hex(reversed(proton::get<proton::decimal64>(v)));
    case proton::DECIMAL128: return hex(proton::get<proton::decimal128>(v));
    case proton::BYTE: return std::to_string(proton::get<int8_t>(v));
    case proton::UBYTE: return std::to_string(proton::get<uint8_t>(v));
    case proton::CHAR: return std::to_string((unsigned long)proton::get<wchar_t>(v));
    case proton::TIMESTAMP: return std::to_string(proton::get<proton::timestamp>(v).milliseconds());
    case proton::STRING: return hex(proton::get<std::string>(v));
    case proton::LIST: return proton::to_string(v) == proton::to_string(list()) ? "true" : "false";
    case proton::MAP: return proton::to_string(v) == proton::to_string(map()) ? "true" : "false";
    case proton::BINARY: {
        proton::binary bytes = proton::get<proton::binary>(v);
        if (type == "large") return bytes == large(bytes.size()) ? std::to_string(bytes.size()) : "no";
        return hex(bytes);
    }
    default: return proton::to_string(v);
    }
}

// The name of the type as well, where it is not the expected one.
std::string shown(const std::string &type, const value &v) {
    std::string found = proton::type_name(v.type());
    std::string expected = type == "large" ? "binary" : type;
    return (found == expected ? "" : found + ":") + show(type, v);
}

class matrix : public proton::messaging_handler {
    bool sends_;
    std::string url_, address_;
    std::vector<line> lines_;
    size_t rounds_, sent_ = 0, done_ = 0;

    void on_container_start(proton::container &c) override { c.connect(url_); }

    void on_connection_open(proton::connection &c) override {
        if (sends_) c.open_sender(address_);
        else c.open_receiver(address_, proton::receiver_options().credit_window(20));
    }

    void on_sendable(proton::sender &s) override {
        while (s.credit() && sent_ < lines_.size()) {
            const std::string &type = lines_[sent_].first, &text = lines_[sent_].second;
            proton::message m;
            m.durable(true);
            if (type == "jms") {
                m.body("jms"); m.id("ID:1"); m.correlation_id("c-1"); m.subject("type");
                m.reply_to("answers"); m.to("jms"); m.content_type("text/plain");
                m.content_encoding("gzip"); m.creation_time(proton::timestamp(1700000000000));
                m.group_id("g"); m.group_sequence(7); m.reply_to_group_id("r"); m.priority(9);
                m.ttl(proton::duration(600000)); m.user("ann");
            } else {
                value v = make(type, text);
                m.body(v);
                if (type != "null" && type != "list" && type != "map" && type != "large") {
                    m.properties().put("p", proton::get<proton::scalar>(v));
                    m.message_annotations().put(proton::symbol("x-opt-v"), v);
                }
            }
            s.send(m);
            ++sent_;
        }
    }

    void on_tracker_accept(proton::tracker &t) override {
        if (++done_ == lines_.size()) t.connection().close();
    }

    void on_tracker_reject(proton::tracker &) override { fail("rejected"); }
    void on_error(const proton::error_condition &e) override { fail(e.what()); }

    void on_message(proton::delivery &d, proton::message &m) override {
        const std::string &type = lines_[done_ % lines_.size()].first;
        std::ostringstream out;
        out << type;
        if (type == "jms") {
            out << ' ' << m.id() << ' ' << m.correlation_id() << ' ' << m.subject() << ' '
                << m.reply_to() << ' ' << m.to() << ' ' << m.content_type() << ' '
                << m.content_encoding() << ' ' << m.creation_time().milliseconds() << ' '
                << m.group_id() << ' ' << m.group_sequence() << ' ' << m.reply_to_group_id() << ' '
                << int(m.priority()) << ' '
                << (m.ttl().milliseconds() > 0 && m.ttl().milliseconds() <= 600000 ? "true" : "false")
                << ' ' << m.user();
        } else {
            out << ' ' << shown(type, m.body());
            if (!m.properties().empty())
                out << ' ' << shown(type, value(m.properties().get("p"))) << ' '
                    << shown(type, m.message_annotations().get(proton::symbol("x-opt-v")));
        }
        std::cout << out.str() << std::endl;
        if (++done_ == lines_.size() * rounds_) { d.accept(); d.connection().close(); }
    }

    void fail(const std::string &why) {
        std::cerr << why << std::endl;
        std::exit(1);
    }

  public:
    matrix(const std::string &act, const std::string &port, const std::string &address, size_t rounds)
        : sends_(act == "send"), url_("amqp://127.0.0.1:" + port), address_(address), rounds_(rounds) {
        for (std::string text; std::getline(std::cin, text);) {
            size_t space = text.find(' ');
            lines_.push_back(line(text.substr(0, space), text.substr(space + 1)));
        }
    }
};

int main(int, char **arguments) {
    matrix handler(arguments[1], arguments[2], arguments[3], std::stoul(arguments[4]));
    proton::container(handler).run();
}
