package recordhttp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
)

// IdlePath is where nodes report jobs that do nothing with their GPUs.
const IdlePath = "/v1/idle/report"

// idleTimeout bounds one try: the next report is due soon.
const idleTimeout = 10 * time.Second

// SendIdle reports a node's idle jobs to the controller. A report that is lost is not repeated.
func (s *Sender) SendIdle(ctx context.Context, r *gpuprof.IdleReport) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return s.post(ctx, IdlePath, body, "", idleTimeout)
}

// Idle takes the reports of idle jobs, from users that may send records.
func (h *Handler) Idle(take func(*gpuprof.IdleReport)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.init()
		c, status, _, text := h.believe(r)
		var body []byte
		if status == 0 {
			body, status, text = h.read(w, r)
		}
		if status != 0 {
			http.Error(w, text, status)
			return
		}
		report := new(gpuprof.IdleReport)
		err := json.Unmarshal(body, report)
		if err == nil {
			err = report.Validate()
		}
		switch {
		case c.Payload != bindTo(IdlePath, body):
			http.Error(w, "the credential is for another report", http.StatusUnauthorized)
		case err != nil:
			http.Error(w, fmt.Sprintf("not a report: %v", err), http.StatusUnprocessableEntity)
		default:
			take(report)
			w.Header().Set(resultHeader, "taken")
			w.WriteHeader(http.StatusOK)
		}
	})
}
