package credential_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/credential"
)

// kiosk stands for Slurm's daemon and its socket (the real one is in the end-to-end tests): it
// signs as that does, and shows what it can't be made to say.
type kiosk struct {
	another bool                   // it has another key
	claims  func(c map[string]any) // changes what a token says
	answer  func(conn net.Conn)    // instead of a good answer
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func (k *kiosk) mac(text string) string {
	m := hmac.New(sha256.New, fmt.Appendf(nil, "slurm.key %v", k.another))
	m.Write([]byte(text))
	return b64(m.Sum(nil))
}

func (k *kiosk) serve(conn net.Conn) error {
	defer conn.Close()
	var head struct {
		Version     uint16
		Length, RPC uint32
	}
	if err := binary.Read(conn, binary.BigEndian, &head); err != nil {
		return err
	}
	body := make([]byte, head.Length-8)
	if _, err := io.ReadFull(conn, body); err != nil {
		return err
	}
	if k.answer != nil {
		k.answer(conn)
		return nil
	}
	switch head.RPC {
	case 64001:
		now := time.Now().Unix()
		c := map[string]any{
			"iat": now, "exp": now + 60, "uid": 1000, "context": "sack",
			"payload": base64.StdEncoding.EncodeToString(body[8:]),
		}
		if k.claims != nil {
			k.claims(c)
		}
		text, err := json.Marshal(c)
		if err != nil {
			return err
		}
		token := b64([]byte(`{"alg":"HS256"}`)) + "." + b64(text)
		token += "." + k.mac(token) + "\x00"
		if err := binary.Write(conn, binary.BigEndian, uint32(len(token))); err != nil {
			return err
		}
		_, err = io.WriteString(conn, token)
		return err
	case 64002:
		token := strings.TrimRight(string(body[4:]), "\x00")
		at := strings.LastIndexByte(token, '.')
		if k.mac(token[:at]) != token[at+1:] {
			return nil // newer releases close
		}
		return binary.Write(conn, binary.BigEndian, uint32(0))
	}
	return fmt.Errorf("request %d", head.RPC)
}

// start returns the method that talks to it.
func (k *kiosk) start(t *testing.T) *credential.Token {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l := must.Get(net.Listen("unix", socket))(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				if err := k.serve(conn); err != nil {
					t.Error(err)
				}
			}()
		}
	}()
	m := credential.NewToken()
	m.Sockets = []string{filepath.Join(t.TempDir(), "none"), socket}
	return m
}

// A token is believed for what it says, and only if it is one of those.
func TestWhatTokensSay(t *testing.T) {
	for name, c := range map[string]struct {
		change func(c map[string]any)
		want   error
	}{
		"a name":           {func(c map[string]any) { c["id"] = map[string]any{"name": "ann", "gids": []int{1}} }, nil},
		"a daemon's own":   {func(c map[string]any) { c["context"] = "auth" }, credential.ErrInvalid},
		"nobody's":         {func(c map[string]any) { delete(c, "uid") }, credential.ErrInvalid},
		"no user":          {func(c map[string]any) { c["uid"] = -1 }, credential.ErrInvalid},
		"a request's hash": {func(c map[string]any) { c["payload"] = "AQID" }, credential.ErrInvalid},
		"without payload":  {func(c map[string]any) { delete(c, "payload") }, credential.ErrInvalid},
		"expired":          {func(c map[string]any) { c["exp"] = time.Now().Unix() - 5 }, credential.ErrExpired},
		"old":              {func(c map[string]any) { c["iat"] = time.Now().Unix() - 3600 }, credential.ErrExpired},
		"of tomorrow":      {func(c map[string]any) { c["iat"] = time.Now().Unix() + 86400 }, credential.ErrExpired},
		"of before":        {func(c map[string]any) { c["iat"] = time.Now().Unix() - 30 }, credential.ErrReplayed},
	} {
		m := (&kiosk{claims: c.change}).start(t)
		got, err := m.Decode(t.Context(), encode(t, m, "x"))
		if !errors.Is(err, c.want) || err == nil && got.User != "ann" {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// What is wrong with Slurm's daemon is not held against a token.
func TestADaemonsFaultIsNoTokens(t *testing.T) {
	valid := encode(t, new(kiosk).start(t), "x")
	for name, answer := range map[string]func(net.Conn){
		"closes": func(net.Conn) {},
		"huge":   func(c net.Conn) { _ = binary.Write(c, binary.BigEndian, uint32(1<<31)) },
		"short":  func(c net.Conn) { _, _ = c.Write([]byte{0, 0}) },
		"junk":   func(c net.Conn) { _, _ = c.Write([]byte("\x00\x00\x00\x05hello")) },
	} {
		m := (&kiosk{answer: answer}).start(t)
		if _, err := m.Encode(t.Context(), "x"); !errors.Is(err, credential.ErrDown) || m.Hint(err) == "" {
			t.Errorf("make, %s: %v", name, err)
		}
		if c, err := m.Decode(t.Context(), valid); err == nil || c != nil {
			t.Errorf("check, %s: %+v, %v", name, c, err)
		}
	}
	none := credential.NewToken()
	none.Sockets = []string{filepath.Join(t.TempDir(), "none")}
	must.Is(t, must.Err(none.Encode(t.Context(), "x")), credential.ErrDown)
	if c, err := none.Decode(t.Context(), valid); !errors.Is(err, credential.ErrDown) || c != nil {
		t.Errorf("check: %+v, %v", c, err)
	}
}

// Which method a cluster has is chosen once, and each has a header of its own.
func TestTheMethodIsChosenOnce(t *testing.T) {
	seen := map[string]bool{}
	for key, want := range map[string]string{
		"": "*credential.Munge *credential.Munge", "/etc/slurmbridge/key": "*credential.Key *credential.Token",
	} {
		how := credential.Choose(key, "")
		must.Equal(t, fmt.Sprintf("%T %T", how.Nodes, how.Users), want, "key %q", key)
		seen[how.Nodes.Header()], seen[how.Users.Header()] = true, true
		must.Equal(t, fmt.Sprintf("%T", credential.ForUser(how.Users.Header(), "")), fmt.Sprintf("%T", how.Users),
			"key %q", key)
	}
	must.Equal(t, len(seen), 3, "headers")
	for _, header := range []string{"", "Basic", "Slurmbridge-Credential"} {
		must.Equal(t, credential.ForUser(header, ""), nil, "a controller that wants %q", header)
	}
}
