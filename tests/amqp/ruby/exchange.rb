# Send messages to a queue, receive them again, and compare.
# Usage: ruby exchange.rb URL QUEUE
require 'qpid_proton'

class Exchange < Qpid::Proton::MessagingHandler
  attr_reader :got

  def initialize(url, queue)
    super()
    @url, @queue = url, queue
    @bodies = ['text', 17, -5, 1.5, true, [1, 'a'], { 'key' => 'value' }]
    @sent = @accepted = @got = 0
  end

  def on_container_start(container)
    @connection = container.connect(@url)
    @connection.open_sender(@queue)
  end

  def on_sendable(sender)
    while sender.credit > 0 && @sent < @bodies.size
      message = Qpid::Proton::Message.new(@bodies[@sent])
      message.id = @sent
      message.subject = "message #{@sent}"
      message.durable = true
      message['number'] = @sent
      sender.send(message)
      @sent += 1
    end
  end

  def on_tracker_accept(tracker)
    @accepted += 1
    tracker.connection.open_receiver(@queue) if @accepted == @bodies.size
  end

  def on_tracker_reject(tracker)
    abort 'rejected'
  end

  def on_message(delivery, message)
    abort "another body: #{message.body.inspect}" unless message.body == @bodies[@got]
    abort 'another subject' unless message.subject == "message #{@got}"
    abort 'another property' unless message['number'] == @got
    @got += 1
    delivery.accept
    delivery.connection.close if @got == @bodies.size
  end
end

handler = Exchange.new(ARGV[0], ARGV[1])
Qpid::Proton::Container.new(handler).run
puts "exchanged #{handler.got}"
