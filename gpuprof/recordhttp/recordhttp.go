// Package recordhttp carries records from the nodes to the controller: HTTP with
// a MUNGE credential that names the sender and binds the body.
package recordhttp

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/munge"
)

// Path is where records are posted.
const Path = "/v1/records"

// maxBody bounds a record on the wire and unpacked, bytes.
const maxBody = 4 << 20

// scheme of the Authorization header.
const scheme = "Munge "

// bind is what the credential carries: the credential of one record is good for
// no other.
func bind(body []byte) string {
	sum := sha256.Sum256(body)
	return "slurmbridge POST " + Path + " " + hex.EncodeToString(sum[:])
}

// Decoder checks credentials; see munge.Munge.
type Decoder interface {
	Decode(ctx context.Context, cred string) (*munge.Credential, error)
}

// Handler takes records. Only who AllowUID names is believed.
type Handler struct {
	Munge    Decoder
	AllowUID func(uid uint32) bool
	// Keep stores a record; isNew is false for one that was there already.
	Keep func(ctx context.Context, r *gpuprof.Record) (isNew bool, err error)
	// Result is told of each request: new, duplicate, refused or failed.
	Result func(result string)
}

// ServeHTTP answers 201 for a new record, 200 for one that was there, 401 for a
// credential that proves nothing, 403 for somebody who may not send records, 413
// and 422 for a body that is no record, 503 where the record could not be kept:
// only then is it worth sending again.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status, text := h.take(w, r)
	result := "refused"
	switch status {
	case http.StatusCreated:
		result = "new"
	case http.StatusOK:
		result = "duplicate"
	case http.StatusServiceUnavailable:
		result = "failed"
	}
	if h.Result != nil {
		h.Result(result)
	}
	if status >= 400 {
		http.Error(w, text, status)
		return
	}
	w.WriteHeader(status)
}

func (h *Handler) take(w http.ResponseWriter, r *http.Request) (int, string) {
	cred, ok := strings.CutPrefix(r.Header.Get("Authorization"), scheme)
	if !ok {
		return http.StatusUnauthorized, "a record needs a MUNGE credential"
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return http.StatusRequestEntityTooLarge, "the record is too large"
	}
	c, err := h.Munge.Decode(r.Context(), cred)
	switch {
	case errors.Is(err, munge.ErrDown):
		return http.StatusServiceUnavailable, "munged does not answer on the controller"
	case err != nil:
		return http.StatusUnauthorized, err.Error()
	case c.Payload != bind(body):
		return http.StatusUnauthorized, "the credential is for another record"
	case !h.AllowUID(c.UID):
		return http.StatusForbidden, fmt.Sprintf("user %d may not send records", c.UID)
	}
	zr, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return http.StatusUnprocessableEntity, "not a packed record"
	}
	rec := new(gpuprof.Record)
	if err := json.NewDecoder(io.LimitReader(zr, maxBody)).Decode(rec); err != nil {
		return http.StatusUnprocessableEntity, "not a record"
	}
	if err := rec.Validate(); err != nil {
		return http.StatusUnprocessableEntity, err.Error()
	}
	isNew, err := h.Keep(r.Context(), rec)
	switch {
	case err != nil:
		return http.StatusServiceUnavailable, "the record could not be kept"
	case isNew:
		return http.StatusCreated, ""
	}
	return http.StatusOK, ""
}

// Encoder makes credentials; see munge.Munge.
type Encoder interface {
	Encode(ctx context.Context, payload string) (string, error)
}

// Sender posts records to a controller.
type Sender struct {
	// URL of the controller, e.g. http://head:9797.
	URL    string
	Munge  Encoder
	Client *http.Client
}

// ErrRefused says that the controller will never take this record; sending it
// again is no use.
var ErrRefused = errors.New("the controller refused the record")

// Send posts one record. Returns an error that wraps ErrRefused where another try
// would be in vain.
func (s *Sender) Send(ctx context.Context, r *gpuprof.Record) error {
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	if err := json.NewEncoder(zw).Encode(r); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if err := zw.Close(); err != nil {
		return err
	}
	body := buf.Bytes()
	cred, err := s.Munge.Encode(ctx, bind(body))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(s.URL, "/")+Path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", scheme+cred)
	req.Header.Set("Content-Type", "application/json")
	client := s.Client
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
	switch {
	case resp.StatusCode < 300:
		return nil
	case resp.StatusCode == http.StatusRequestEntityTooLarge, resp.StatusCode == http.StatusUnprocessableEntity:
		return fmt.Errorf("%w: %s", ErrRefused, strings.TrimSpace(string(text)))
	}
	return fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(text)))
}
