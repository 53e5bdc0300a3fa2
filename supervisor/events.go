package supervisor

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/holdfast-quic/holdfast/shm"
)

// subscriberBacklog is how many events wait for a reader of /v1/events. One
// that is further behind is cut off: it can ask for the status and come again.
const subscriberBacklog = 256

// news is one event for readers of /v1/events.
type news struct {
	name string
	data []byte
}

type (
	generationNews struct {
		Generation shm.Generation `json:"generation"`
		State      string         `json:"state"`
		Reason     string         `json:"reason,omitempty"`
	}
	workerNews struct {
		What        string          `json:"what"` // started or ended
		Generation  shm.Generation  `json:"generation"`
		Slot        shm.SlotID      `json:"slot"`
		Incarnation shm.Incarnation `json:"incarnation"`
		PID         int             `json:"pid"`
		Reason      string          `json:"reason,omitempty"`
	}
	reloadNews struct {
		Result     string `json:"result"` // ok or failed
		Generation uint32 `json:"generation,omitempty"`
		Reason     string `json:"reason,omitempty"`
	}
	stopNews struct {
		Fast bool `json:"fast"`
	}
)

// hub hands events to subscribers without ever waiting for one.
type hub struct {
	mu          sync.Mutex
	subscribers map[chan news]struct{}
	closed      bool
}

func newHub() *hub { return &hub{subscribers: map[chan news]struct{}{}} }

// subscribe returns a channel that is closed when the subscriber is too slow
// or the service ends.
func (h *hub) subscribe() chan news {
	h.mu.Lock()
	defer h.mu.Unlock()
	ch := make(chan news, subscriberBacklog)
	if h.closed {
		close(ch)
		return ch
	}
	h.subscribers[ch] = struct{}{}
	return ch
}

func (h *hub) unsubscribe(ch chan news) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(ch)
}

func (h *hub) drop(ch chan news) {
	if _, there := h.subscribers[ch]; there {
		delete(h.subscribers, ch)
		close(ch)
	}
}

// publish sends an event, with the time added, to all subscribers.
func (h *hub) publish(name string, data any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.subscribers) == 0 {
		return
	}
	wire, err := json.Marshal(struct {
		Time time.Time `json:"time"`
		Data any       `json:"data"`
	}{time.Now(), data})
	if err != nil {
		return // its types are ours and always encode
	}
	for ch := range h.subscribers {
		select {
		case ch <- news{name, wire}:
		default:
			h.drop(ch)
		}
	}
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for ch := range h.subscribers {
		h.drop(ch)
	}
}
