package door

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/extmesh/extmesh/internal/config"
)

// Tokens are the bearer tokens of a file, which is read again when it changes.
type Tokens struct {
	path   string
	logger *slog.Logger

	mu      sync.Mutex
	tokens  []config.Token
	changed time.Time // of the file
	size    int64
	looked  time.Time
	said    string // the error that was logged last
}

// lookEvery is the time between two checks whether the file has changed.
const lookEvery = 2 * time.Second

// LoadTokens reads a file of tokens. Other users must not be able to read it; the file's group may, because secrets in
// containers belong to root and a group.
func LoadTokens(path string, logger *slog.Logger) (*Tokens, error) {
	t := &Tokens{path: path, logger: logger}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	incomplete, err := t.read(info)
	switch {
	case err != nil:
		return nil, err
	case incomplete != nil:
		return nil, incomplete
	case len(t.tokens) == 0:
		return nil, fmt.Errorf("%s: it has no tokens; `extctl mcp token NAME` prints one", path)
	}
	return t, nil
}

// read reads the file. Tokens whose context is missing are left out, and incomplete tells which; the file is read again
// then. The caller holds mu, or has the only reference.
func (t *Tokens) read(info os.FileInfo) (incomplete, err error) {
	if runtime.GOOS != "windows" && info.Mode().Perm()&0o027 != 0 {
		return nil, fmt.Errorf("%s: other users can read or change the tokens: chmod 600 it", t.path)
	}
	data, err := os.ReadFile(t.path)
	if err != nil {
		return nil, err
	}
	tokens, err := config.ParseTokens(t.path, data)
	if err != nil {
		return nil, err
	}
	if len(tokens) == 0 && !bytes.Contains(data, []byte("{}")) { // it is being written
		return nil, fmt.Errorf("%s: it has no tokens; `tokens: {}` is a file without any", t.path)
	}
	var missing []error
	t.tokens = slices.DeleteFunc(tokens, func(token config.Token) bool {
		if !filepath.IsAbs(token.Context) {
			return false
		}
		_, err := os.Stat(token.Context)
		if err != nil {
			missing = append(missing, fmt.Errorf("%s: context of %s: %w", t.path, token.Name, err))
		}
		return err != nil
	})
	if t.changed, t.size = info.ModTime(), info.Size(); len(missing) > 0 {
		t.size = -1
	}
	return errors.Join(missing...), nil
}

// find returns the entry of a token.
func (t *Tokens) find(token string) (config.Token, bool) {
	sum := sha256.Sum256([]byte(token))
	hash := []byte(hex.EncodeToString(sum[:]))
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refresh(now)
	var found config.Token
	ok := false
	for _, known := range t.tokens { // all of them, so that the time does not depend on the position
		if subtle.ConstantTimeCompare(hash, []byte(known.SHA256)) == 1 && !known.IsExpired(now) {
			found, ok = known, true
		}
	}
	return found, ok
}

// permit reports whether there is a valid token of a name with a context for a profile. While a token is left out because its
// context is missing, it may be any.
func (t *Tokens) permit(name, natsContext, profile string) bool {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refresh(now)
	return t.size < 0 || slices.ContainsFunc(t.tokens, func(known config.Token) bool {
		return known.Name == name && known.Context == natsContext && known.Permits(profile) && !known.IsExpired(now)
	})
}

// refresh reads the file again if it has changed. A file that cannot be read leaves the tokens as they were. The caller
// holds mu.
func (t *Tokens) refresh(now time.Time) {
	if now.Sub(t.looked) < lookEvery {
		return
	}
	t.looked = now
	said := t.said
	t.said = ""
	info, err := os.Stat(t.path)
	if err == nil && (!info.ModTime().Equal(t.changed) || info.Size() != t.size) {
		var incomplete error
		switch incomplete, err = t.read(info); {
		case incomplete != nil:
			if t.said = incomplete.Error(); t.said != said {
				t.logger.Error("tokens are refused, because their context cannot be read", "error", incomplete)
			}
		case err == nil:
			t.logger.Info("the tokens were read again", "file", t.path, "tokens", len(t.tokens))
		}
	}
	if err != nil {
		if t.said = err.Error(); t.said != said {
			t.logger.Error("the tokens cannot be read; those read before stay valid", "file", t.path, "error", err)
		}
	}
}
