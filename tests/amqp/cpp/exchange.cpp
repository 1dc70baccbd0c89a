// Send messages to a queue, receive them again, and compare.
// Usage: exchange URL QUEUE [USER PASSWORD]
#include <proton/connection.hpp>
#include <proton/connection_options.hpp>
#include <proton/container.hpp>
#include <proton/delivery.hpp>
#include <proton/message.hpp>
#include <proton/messaging_handler.hpp>
#include <proton/receiver_options.hpp>
#include <proton/sender.hpp>
#include <proton/tracker.hpp>
#include <proton/types.hpp>

#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <vector>

class exchange : public proton::messaging_handler {
    std::string url_, queue_, user_, password_;
    std::vector<proton::value> bodies_;
    size_t sent_ = 0, accepted_ = 0, got_ = 0;

    void fail(const std::string &why) {
        std::cerr << why << std::endl;
        std::exit(1);
    }

    void on_container_start(proton::container &c) override {
        proton::connection_options options;
        if (!user_.empty())
            options.user(user_).password(password_).sasl_enabled(true)
                .sasl_allow_insecure_mechs(true).sasl_allowed_mechs("SCRAM-SHA-256 PLAIN");
        c.connect(url_, options);
    }

    void on_connection_open(proton::connection &c) override { c.open_sender(queue_); }

    void on_sendable(proton::sender &s) override {
        while (s.credit() && sent_ < bodies_.size()) {
            proton::message m;
            m.body(bodies_[sent_]);
            m.id(std::uint64_t(sent_));
            m.subject("message " + std::to_string(sent_));
            m.durable(true);
            m.priority(7);
            m.properties().put("number", std::int64_t(sent_));
            m.properties().put("half", 0.5);
            s.send(m);
            ++sent_;
        }
    }

    void on_tracker_accept(proton::tracker &t) override {
        if (++accepted_ == bodies_.size())
            t.connection().open_receiver(queue_, proton::receiver_options().auto_accept(false));
    }

    void on_tracker_reject(proton::tracker &) override { fail("rejected"); }

    void on_message(proton::delivery &d, proton::message &m) override {
        if (!(m.body() == bodies_[got_])) fail("another body at " + std::to_string(got_));
        if (m.subject() != "message " + std::to_string(got_)) fail("another subject");
        if (m.id() != proton::message_id(std::uint64_t(got_))) fail("another id");
        if (proton::get<std::int64_t>(m.properties().get("number")) != std::int64_t(got_))
            fail("another property");
        if (m.priority() != 7 || !m.durable()) fail("another header");
        d.accept();
        if (++got_ == bodies_.size()) d.connection().close();
    }

    void on_error(const proton::error_condition &e) override { fail(e.what()); }

  public:
    exchange(const std::string &url, const std::string &queue, const std::string &user,
             const std::string &password)
        : url_(url), queue_(queue), user_(user), password_(password) {
        bodies_ = {proton::value(std::string("text \xc3\xa9")), proton::value(std::int32_t(-5)),
                   proton::value(std::uint64_t(1) << 63), proton::value(1.5f),
                   proton::value(2.5), proton::value(true),
                   proton::value(proton::symbol("s")), proton::value(proton::uuid::random()),
                   proton::value(proton::timestamp(1700000000123)),
                   proton::value(std::vector<std::int32_t>{1, 2, 3}),
                   proton::value(std::map<std::string, std::int32_t>{{"a", 1}, {"b", 2}})};
    }

    size_t got() const { return got_; }
};

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    exchange handler(argv[1], argv[2], argc > 3 ? argv[3] : "", argc > 4 ? argv[4] : "");
    proton::container(handler).run();
    std::cout << "exchanged " << handler.got() << std::endl;
    return 0;
}
