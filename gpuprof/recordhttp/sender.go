// Package recordhttp carries records from the nodes to the controller: HTTP with
// a credential (MUNGE's, or of a shared key) that names the sender and binds the body.
//
// A record is one POST of packed JSON. The sender is authenticated before a byte of the body is read; what isn't
// believed is never stored. From the credential the controller also learns how far the sender's clock is off.
package recordhttp

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/common/config"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/slurmbridge/credential"
)

// Sender posts records to a controller.
type Sender struct {
	// URL of the controller, e.g. http://head:9797.
	URL         string
	Credentials credential.Method
	// Client talks to the controller; needed, see NewClient.
	Client *http.Client
	// Timeout bounds one try. Default 30 s.
	Timeout time.Duration
}

// ErrRefused says that the controller will never take this record; sending it again is no use.
var ErrRefused = errors.New("the controller refused the record")

// AnswerError is any answer but yes: the controller is there, and something is
// wrong with it, with this node or with this record.
type AnswerError struct {
	Status int
	Text   string // what to do about it
}

// Error says what was answered.
func (e *AnswerError) Error() string {
	return fmt.Sprintf("the controller answers %d %s: %s", e.Status, http.StatusText(e.Status), e.Text)
}

// pack makes the body of a record.
func pack(r *gpuprof.Record) ([]byte, error) {
	var buf bytes.Buffer
	zw, err := gzip.NewWriterLevel(&buf, gzip.BestCompression)
	if err == nil {
		err = errors.Join(json.NewEncoder(zw).Encode(r), zw.Close())
	}
	return buf.Bytes(), err
}

// Send posts one record. Returns an error that wraps ErrRefused if another try would fail, too, an AnswerError if the
// controller refused for another reason; any other error comes from this node or the network.
func (s *Sender) Send(ctx context.Context, r *gpuprof.Record) error {
	body, err := pack(r)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return s.post(ctx, Path, body, "gzip", cmp.Or(s.Timeout, 30*time.Second))
}

// SendIdle reports a node's idle jobs to the controller. A report that is lost is not repeated.
func (s *Sender) SendIdle(ctx context.Context, r *gpuprof.IdleReport) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return s.post(ctx, IdlePath, body, "", idleTimeout)
}

// post sends a body with a credential for it; encoding "" = as it is.
func (s *Sender) post(ctx context.Context, path string, body []byte, encoding string, timeout time.Duration) error {
	cred, err := s.Credentials.Encode(ctx, bindTo(path, body))
	if err != nil {
		return fmt.Errorf("%w: %s", err, s.Credentials.Hint(err))
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(s.URL, "/")+path,
		bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set(s.Credentials.Header(), cred)
	req.Header.Set("Content-Type", "application/json")
	if encoding != "" {
		req.Header.Set("Content-Encoding", encoding)
	}
	resp, err := s.Client.Do(req)
	if err != nil {
		return fmt.Errorf("%w: is slurmbridge serve running there, and do the settings controller and controller_config fit?",
			err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
	return answer(resp, strings.TrimSpace(string(text)))
}

// answer makes an error of what the controller said; nil = it has the record.
func answer(resp *http.Response, text string) error {
	ours := resp.Header.Get(resultHeader) != ""
	switch status := resp.StatusCode; {
	case ours && status < 300:
		return nil
	case ours && (status == http.StatusRequestEntityTooLarge || status == http.StatusUnprocessableEntity):
		return fmt.Errorf("%w: %s", ErrRefused, text)
	case status == http.StatusUnauthorized && resp.Header.Get("WWW-Authenticate") != "":
		text = "its web_config asks for a user and a password: give them as basic_auth in the file that controller_config " +
			"names"
	case status == http.StatusBadRequest && strings.Contains(text, "HTTPS"):
		text = "it speaks TLS: the setting controller begins with https://"
	case status >= 300 && status < 400:
		text = fmt.Sprintf("it sends us to %q: name that in the setting controller", resp.Header.Get("Location"))
	case !ours && status < 500:
		text = "is slurmbridge serve there, of this release, and not another program? See the setting controller"
	}
	return &AnswerError{resp.StatusCode, text}
}

// Path is where records are posted, IdlePath where nodes report jobs that do nothing with their GPUs.
const (
	Path     = "/v1/records"
	IdlePath = "/v1/idle/report"
)

// idleTimeout bounds one try to report idle jobs: the next report is due soon.
const idleTimeout = 10 * time.Second

// resultHeader of an answer says what became of the record. Without it the answer is another server's, such as a
// proxy's, which can neither take a record nor refuse it for good.
const resultHeader = "Slurmbridge-Record"

// Bounds of a record on the wire and unpacked, bytes. The longest series and 1024
// neighbours are about 300 KiB unpacked.
const (
	maxPacked = 1 << 20
	maxBody   = 4 << 20
)

// MinSkew is the difference of two clocks that is taken for one: credentials count
// whole seconds, and are on their way for a while.
const MinSkew = 2 * time.Second

// bindTo is what the credential of a body for a path carries: the credential of one record is good for no other.
func bindTo(path string, body []byte) string {
	sum := sha256.Sum256(body)
	return "slurmbridge " + http.MethodPost + " " + path + " " + hex.EncodeToString(sum[:])
}

// NewClient makes the client of a Sender. file ("" = none) says how to verify the controller and how to authenticate:
// Prometheus's format for HTTP clients (tls_config with ca_file, cert_file, key_file and server_name, basic_auth,
// proxy_url). Names in it are relative to its folder. Certificates that change on disk are read again.
func NewClient(file string) (*http.Client, error) {
	cfg := &config.HTTPClientConfig{}
	if file != "" {
		text, err := os.ReadFile(filepath.Clean(file))
		if err != nil {
			return nil, err
		}
		if cfg, err = config.LoadHTTPConfig(string(text)); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		cfg.SetDirectory(filepath.Dir(file))
	}
	cfg.FollowRedirects = false // a credential is for the controller only
	cfg.EnableHTTP2 = false     // one record at a time, and errors that say more
	c, err := config.NewClientFromConfig(*cfg, "controller", config.WithIdleConnTimeout(time.Minute))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return c, nil
}
