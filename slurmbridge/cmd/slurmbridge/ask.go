package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/gpuprof/recordhttp"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/credential"
	"github.com/slurmbridge/slurmbridge/slurmbridge/doctor"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
)

// askTimeout bounds a question and its answer.
const askTimeout = 10 * time.Second

// errNoDaemon: there is no answer where the daemon should be.
var errNoDaemon = errors.New("no answer from the daemon")

// askFlags adds the flags of commands that ask the daemon; each overrules the setting of its name.
func askFlags(c *cobra.Command) {
	c.Flags().String("server", "", "the daemon's address: head:9797 or https://head:9797 (default: the setting `server`)")
	c.Flags().String("client-config", "", "how the daemon is trusted and what it is shown, a `file` in the format of "+
		"Prometheus's HTTP clients (default: the setting client_config)")
}

// asking is a connection to the daemon.
type asking struct {
	client *http.Client
	url    string // without a slash at its end; "" = the daemon serves nothing
}

// newAsking finds the daemon of the settings. The client uses no proxy and follows no redirect: either would get the
// user's credential.
func newAsking(ctx context.Context, cfg *config.Config) (*asking, error) {
	client, err := recordhttp.NewClient(cfg.ClientConfig)
	if err != nil {
		return nil, cli.Usage(fmt.Errorf("%s: %w", cfg.Where("client_config"), err))
	}
	a := &asking{client: client, url: strings.TrimSuffix(daemonAddress(cfg), "/")}
	switch {
	case a.url == "" || strings.Contains(a.url, "://"):
	case cfg.ClientConfig != "": // a password goes nowhere in clear that isn't named so
		a.url = "https://" + a.url
	default:
		a.url = schemeOf(ctx, a.url) + a.url
	}
	return a, nil
}

// daemonAddress is the setting server, or this machine at the port of listen; "" = the daemon serves nothing.
func daemonAddress(cfg *config.Config) string {
	if cfg.Server != "" {
		return cfg.Server
	}
	host, port, err := net.SplitHostPort(cfg.Listen)
	if err != nil || port == "" {
		return ""
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}

// schemeOf asks an address, without a password or a credential, whether it requires TLS: Go's servers answer a request
// without it in words.
func schemeOf(ctx context.Context, address string) string {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, "http://"+address+"/-/healthy", http.NoBody)
	if err != nil {
		return "http://"
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return "http://" // the question itself will say what is wrong
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusBadRequest && resp.ProtoMajor == 1 && resp.ProtoMinor == 0 {
		return "https://"
	}
	return "http://"
}

// get requests a page; a credential "" = none.
func (a *asking) get(ctx context.Context, path, header, cred string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+path, http.NoBody)
	if err != nil {
		return nil, cli.Usage(fmt.Errorf("server %q is no address: %w", a.url, err))
	}
	if cred != "" {
		req.Header.Set(header, cred)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w at %s (%s); %s", errNoDaemon, a.url, doctor.Cause(err), hint(err))
	}
	return resp, nil
}

// hint says what to do about a failed connection.
func hint(err error) string {
	cause := doctor.Cause(err)
	switch {
	case strings.Contains(cause, "x509") || strings.Contains(cause, "certificate"):
		return "client_config names the file that says which authority to trust, and which certificate to show"
	case strings.Contains(cause, "server gave HTTP response to HTTPS client"):
		return "it has no TLS: name it as http://HOST:PORT in the setting server"
	}
	return "where it is down, waiting jobs start by themselves, each with a GPU of its own; on the controller: " +
		"systemctl status slurmbridge"
}

// ask requests a page from the daemon and decodes it. A credential by MUNGE or by Slurm shows the user more.
func ask(ctx context.Context, cfg *config.Config, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	a, err := newAsking(ctx, cfg)
	if err != nil {
		return err
	}
	if a.url == "" {
		return fmt.Errorf("%w: listen is empty, so it serves nothing; name it by the setting server, or --server",
			errNoDaemon)
	}
	resp, err := a.get(ctx, path, "", "")
	if err != nil {
		return err
	}
	if how := credential.ForUser(resp.Header.Get("WWW-Authenticate"), cfg.MungeSocket); how != nil {
		name, _, _ := strings.Cut(path, "?")
		cred, err := how.Encode(ctx, httpapi.Question(name))
		switch {
		case err == nil:
			resp.Body.Close()
			if resp, err = a.get(ctx, path, how.Header(), cred); err != nil {
				return err
			}
		case resp.StatusCode == http.StatusUnauthorized:
			resp.Body.Close()
			return fmt.Errorf("the daemon requires a credential: %w: %s", err, how.Hint(err))
		} // otherwise a credential would only have shown more
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	switch {
	case err != nil:
		return fmt.Errorf("read answer of %s: %w", a.url, err)
	case resp.StatusCode == http.StatusUnauthorized && strings.HasPrefix(resp.Header.Get("WWW-Authenticate"), "Basic"):
		return fmt.Errorf("%s requires a password: the setting client_config, or --client-config, names a file that has it "+
			"(basic_auth)", a.url)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s", strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("answer of %s is not what slurmbridge says: %w", a.url, err)
	}
	return nil
}
